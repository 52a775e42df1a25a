// What eight codes from byte b on stand for.
fn $values(b: u32) -> Eight {
    let v = vec4<u32>($word(b));
    return Eight(
        vec4<f32>((v >> vec4<u32>(0u, 3u, 6u, 9u)) & vec4<u32>(7u)),
        vec4<f32>((v >> vec4<u32>(12u, 15u, 18u, 21u)) & vec4<u32>(7u)));
}
