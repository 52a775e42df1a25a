// The first `left` of eight, zeros after them: what lies behind a row is not of this row, and may be NaN.
fn cut(v: Eight, left: u32) -> Eight {
    let zero = vec4<f32>(0.0);
    let at = vec4<u32>(0u, 1u, 2u, 3u);
    return Eight(select(zero, v.a, at < vec4<u32>(left)), select(zero, v.b, at + vec4<u32>(4u) < vec4<u32>(left)));
}

//#if MANY
// Words that tell of one of several weights, and where its outputs go.
const PART: u32 = 7u;
var<private> out_at: u32;
var<private> out_step: u32;
//#end

// Writes an output: a, or silu(a) b, with what comes after: a bias and a residual, where the layer has them.
fn finish_with(row: u32, o: u32, a: f32, b: f32, bias: f32, rest: f32) {
    var v = a;
//#if GATED
    v = silu(a) * b;
//#end
//#if BIAS
    v += bias;
//#end
    v = activate(v);
//#if RESIDUAL
    v += rest;
//#end
//#if MANY
    out[out_at + row * out_step + o] = v;
//#else
    out[p.out + row * p.out_row + o] = v;
//#end
}

fn bias_of(o: u32) -> f32 {
//#if BIAS
    return bias_f(p.bias, o);
//#else
    return 0.0;
//#end
}

fn rest_of(row: u32, o: u32) -> f32 {
//#if RESIDUAL
    return residual[p.residual + row * p.residual_row + o];
//#else
    return 0.0;
//#end
}

fn finish(row: u32, o: u32, a: f32, b: f32) { finish_with(row, o, a, b, bias_of(o), rest_of(row, o)); }
