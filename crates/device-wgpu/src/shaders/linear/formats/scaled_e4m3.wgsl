// What eight codes from byte b on stand for.
fn $values(b: u32) -> Eight {
    return Eight(e4m3_f($word(b)), e4m3_f($word(b + 4u)));
}
