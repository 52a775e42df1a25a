// Element `d` of a head's outputs from `splits` partial results in ascending order, `first` the first of them.
fn combined(first: u32, splits: u32, heads: u32, head: u32, d: u32) -> f32 {
    let size = N + 2u;
    var top = -3e38;
    for (var i = 0u; i < splits; i++) { top = max(top, parts[((first + i) * heads + head) * size]); }
    var total = 0.0;
    var sum = 0.0;
    for (var i = 0u; i < splits; i++) {
        let record = ((first + i) * heads + head) * size;
        let factor = exp_f(parts[record] - top);
        total = fma(parts[record + 1u], factor, total);
        sum = fma(parts[record + 2u + d], factor, sum);
    }
    return sum / total;
}
