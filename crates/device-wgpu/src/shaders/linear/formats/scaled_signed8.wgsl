// What eight codes from byte b on stand for.
fn $values(b: u32) -> Eight {
    return Eight(signed_bytes_f($word(b)), signed_bytes_f($word(b + 4u)));
}
