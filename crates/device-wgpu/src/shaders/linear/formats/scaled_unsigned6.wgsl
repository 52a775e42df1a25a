// What eight codes from byte b on stand for.
fn $values(b: u32) -> Eight {
    let low = $word(b);
    let high = (low >> 24u) | ($half(b + 4u) << 8u);
    let by = vec4<u32>(0u, 6u, 12u, 18u);
    return Eight(
        vec4<f32>((vec4<u32>(low) >> by) & vec4<u32>(63u)), vec4<f32>((vec4<u32>(high) >> by) & vec4<u32>(63u)));
}
