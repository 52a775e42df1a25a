// Four values of x from an element on that is a multiple of four where x is bound as vectors.
fn x4(at: u32) -> vec4<f32> {
//#if WIDE_X
    return x[at >> 2u];
//#else
    return vec4<f32>(x[at], x[at + 1u], x[at + 2u], x[at + 3u]);
//#end
}
