// Element `d` of a head's outputs from `splits` partial results in ascending order, `first` the first of them: so many of
// them asked for at a time.
const TOGETHER: u32 = 8u;

fn combined(first: u32, splits: u32, heads: u32, head: u32, d: u32) -> f32 {
    let size = N + 2u;
    let last = splits - 1u;
    var top = -3e38;
    for (var i = 0u; i < splits; i += TOGETHER) {
//#each j 8
        let top_{j} = parts[((first + min(i + {j}u, last)) * heads + head) * size];
//#end
//#each j 8
        top = max(top, top_{j});
//#end
    }
    var total = 0.0;
    var sum = 0.0;
    for (var i = 0u; i < splits; i += TOGETHER) {
//#each j 8
        let record_{j} = ((first + min(i + {j}u, last)) * heads + head) * size;
        let own_{j} = parts[record_{j}];
        let total_{j} = parts[record_{j} + 1u];
        let sum_{j} = parts[record_{j} + 2u + d];
//#end
//#each j 8
        if i + {j}u <= last {
            let factor = exp_f(own_{j} - top);
            total = fma(total_{j}, factor, total);
            sum = fma(sum_{j}, factor, sum);
        }
//#end
    }
    return sum / total;
}
