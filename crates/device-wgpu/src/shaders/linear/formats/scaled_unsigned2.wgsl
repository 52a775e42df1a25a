// What eight codes from byte b on stand for.
fn $values(b: u32) -> Eight {
    let v = vec4<u32>($half(b));
    return Eight(
        vec4<f32>((v >> vec4<u32>(0u, 2u, 4u, 6u)) & vec4<u32>(3u)),
        vec4<f32>((v >> vec4<u32>(8u, 10u, 12u, 14u)) & vec4<u32>(3u)));
}
