// What linear kernels are told: rows, inner and outer sides, places and steps. Places of f32 tensors and steps of their
// rows are in elements, those of weights in bytes.
struct Params {
    m: u32, k: u32, n: u32,
    x: u32, x_row: u32,
    out: u32, out_row: u32,
    bias: u32,
    residual: u32, residual_row: u32,
    // Groups: scales of a row.
    a: u32, a_row: u32, a_scales: u32, a_biases: u32, a_groups: u32,
    b: u32, b_row: u32, b_scales: u32, b_biases: u32, b_groups: u32,
    // No compiler knows that it is zero.
    zero: u32,
    // Routed: the first slot (a row and one of its experts), where the list starts, experts of a row, and how far it is
    // from the weights of an expert to those of the next.
    first: u32, list: u32, top: u32, a_step: u32, a_scales_step: u32, b_step: u32, b_scales_step: u32,
    // Normed: the norm's weight, what it adds to the mean, and where its result goes, in vectors.
    norm_weight: u32, norm_eps: f32, normed: u32, normed_row: u32,
}
var<immediate> p: Params;

// The expert whose weights are read; those of no expert are those of expert 0.
var<private> expert: u32 = 0u;
