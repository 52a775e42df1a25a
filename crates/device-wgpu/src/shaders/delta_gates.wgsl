// beta = sigmoid(b), g = -exp(A_log) * softplus(a + dt_bias), a thread an element.
struct Params {
    count: u32, heads: u32,
    a_at: u32, a_row: u32, b_at: u32, b_row: u32,
    g_at: u32, g_row: u32, beta_at: u32, beta_row: u32,
    log_at: u32, bias_at: u32,
}
var<immediate> p: Params;

// ln(1 + y) for y in 0..1: exact where y is small, where 1 + y has lost it.
fn log1p_f(y: f32) -> f32 {
    let u = 1.0 + y;
    let d = u - 1.0;
    return select(log(u) * (y / d), y, d == 0.0);
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = group_index(group, groups) * WG + lane;
    if i >= p.count { return; }
    let row = i / p.heads;
    let h = i % p.heads;
    let x = a[p.a_at + row * p.a_row + h] + dt_bias_f(p.bias_at, h);
    let softplus = max(x, 0.0) + log1p_f(exp_f(-abs(x)));
    var rate = a_log_f(p.log_at, h);
    if IS_RATE == 0u { rate = -exp_f(rate); }
    let write = sigmoid(b[p.b_at + row * p.b_row + h]);
    g[p.g_at + row * p.g_row + h] = rate * softplus;
    beta[p.beta_at + row * p.beta_row + h] = write;
}
