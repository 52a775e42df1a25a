// What eight codes from byte b on stand for.
fn $values(b: u32) -> Eight {
    let v = $pair(b);
    return Eight(signed_bytes_f(v.x), signed_bytes_f(v.y));
}
