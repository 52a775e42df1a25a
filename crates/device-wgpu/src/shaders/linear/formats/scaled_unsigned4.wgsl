// What eight codes from byte b on stand for.
fn $values(b: u32) -> Eight {
    let v = vec4<u32>($word(b));
    return Eight(
        vec4<f32>((v >> vec4<u32>(0u, 4u, 8u, 12u)) & vec4<u32>(15u)),
        vec4<f32>((v >> vec4<u32>(16u, 20u, 24u, 28u)) & vec4<u32>(15u)));
}
