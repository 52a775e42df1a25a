// What eight codes from byte b on stand for.
fn $values(b: u32) -> Eight {
    let low = $word(b);
    let high = (low >> 20u) | ($byte(b + 4u) << 12u);
    let by = vec4<u32>(0u, 5u, 10u, 15u);
    return Eight(
        vec4<f32>((vec4<u32>(low) >> by) & vec4<u32>(31u)), vec4<f32>((vec4<u32>(high) >> by) & vec4<u32>(31u)));
}
