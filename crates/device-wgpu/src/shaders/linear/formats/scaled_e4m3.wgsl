// What eight codes from byte b on stand for.
fn $values(b: u32) -> Eight {
    let v = $pair(b);
    return Eight(e4m3_f(v.x), e4m3_f(v.y));
}
