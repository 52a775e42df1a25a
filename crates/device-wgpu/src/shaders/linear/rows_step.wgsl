// Eight inner elements from `i` on, of which the weights' are `w_` and `v_`.
//#if NORMED
        let norm_a = norm_weight_f4(p.norm_weight, i) + vec4(f32(ONE_PLUS));
        // Rows are whole fours: those past the last are not written, and count as zeros below.
        let norm_b = norm_weight_f4(p.norm_weight, min(i + 4u, p.k - 4u)) + vec4(f32(ONE_PLUS));
//#end
//#each m BATCH
        {
            let part = x8(x_{m} + i, p.k - i);
            var u = part.a;
            var v = part.b;
//#if NORMED
            u = u * scale_{m} * norm_a;
            v = v * scale_{m} * norm_b;
            // What the norm leaves is for others too: those that write the first outputs write it.
            if group.x == 0u && rows + {m}u < p.m {
                let at = p.normed + (rows + {m}u) * p.normed_row + i / 4u;
                normed[at] = u;
                if i + 4u < p.k { normed[at + 1u] = v; }
            }
//#end
//#each r ROWS
            s_{r}_{m} = dot8(w_{r}, u, v, s_{r}_{m});
//#if GATED
            t_{r}_{m} = dot8(v_{r}, u, v, t_{r}_{m});
//#end
//#end
        }
//#end
