// What eight codes from byte b on stand for.
fn $values(b: u32) -> Eight {
    return Eight(bytes_f($word(b)), bytes_f($word(b + 4u)));
}
