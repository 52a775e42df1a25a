//! Weights of attention by a table: powers of two in bf16 from scores, some thirty at a time.
//!
//! A bf16 is an exponent and seven more bits. A score in 128ths, rounded to a whole number, is an exponent and seven bits
//! too, and what those become is a table of 128 bytes: one instruction. So 32 weights take about ten instructions,
//! where a polynomial takes twenty-five, which on AMX is longer than the products of the tiles around it. Rounding the
//! score adds as much error as rounding the weight, half a bit of bf16; the sum is of the rounded weights, so that
//! what all of them have in common drops out.
//!
//! What goes wrong unseen: two scores packed into a word pass through lanes of four, so that keys come in an order of
//! their own, which is [`key_at`]; values packed in any other meet the weights of other keys.

use std::arch::x86_64::*;

use super::avx512_bf16::Avx512Bf16;
use super::unit::{PARTS, WeighPanel};

/// Columns of a panel of scores.
const COLS: usize = 32;

/// The key of a panel whose weight is half-word `i` of its words.
#[inline(always)]
pub(crate) const fn key_at(i: usize) -> usize {
    let (word, half) = (i / 2, i % 2);
    4 * (word / 4) + 2 * (word % 2) + half + 16 * (word % 4 / 2)
}

/// [`key_at`] of all.
static ORDER: [u16; COLS] = {
    let mut order = [0; COLS];
    let mut i = 0;
    while i < COLS {
        order[i] = key_at(i) as u16;
        i += 1;
    }
    order
};

/// Bits of `2^(i / 128)` after the leading one, rounded to nearest.
static BITS: [u8; 128] = {
    let mut bits = [0; 128];
    let mut i = 0;
    while i < 128 {
        // The first m with ((128 + m + 1/2) / 128)^128 >= 2^i.
        let mut m = 0;
        while m < 127 && power_is_below(2 * m + 257, i) {
            m += 1;
        }
        bits[i] = m as u8;
        i += 1;
    }
    bits
};

/// Whether `(half / 256)^128 < 2^i`, for a base of 1 to 2: squared seven times, and kept below 2.
const fn power_is_below(half: u64, i: usize) -> bool {
    let (mut mantissa, mut exponent) = (half as f64 / 256.0, 0u32);
    let mut squared = 0;
    while squared < 7 {
        mantissa *= mantissa;
        exponent *= 2;
        if mantissa >= 2.0 {
            mantissa /= 2.0;
            exponent += 1;
        }
        squared += 1;
    }
    (exponent as usize) < i
}

impl Avx512Bf16 {
    /// [`Unit::weigh_panel`](super::unit::Unit::weigh_panel).
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub(crate) unsafe fn weigh_panel(self, a: WeighPanel<'_>) -> bool {
        // SAFETY: the token, and the caller's promise.
        unsafe {
            let low = _mm512_loadu_si512(BITS.as_ptr().cast());
            let high = _mm512_loadu_si512(BITS.as_ptr().add(64).cast());
            let (parts, ones) = (_mm512_set1_ps(PARTS), _mm512_set1_epi32(0x3f80_3f80));
            let exponent = _mm512_set1_epi16(!0x7f);
            let mut highest = _mm512_setzero_si512();
            for i in 0..a.rows {
                let (from, start) = (a.scores.add(i * a.lds), _mm512_set1_ps(*a.starts.add(i)));
                let x = _mm512_cvtps_epi32(_mm512_fmadd_ps(_mm512_loadu_ps(from), parts, start));
                let y = _mm512_cvtps_epi32(_mm512_fmadd_ps(_mm512_loadu_ps(from.add(16)), parts, start));
                // What lies below the smallest power becomes zero.
                let mut both = _mm512_packus_epi32(x, y);
                if let Some(seen) = a.seen {
                    let seen = seen[i].saturating_sub(a.first).min(COLS) as i16;
                    let order = _mm512_loadu_si512(ORDER.as_ptr().cast());
                    both = _mm512_maskz_mov_epi16(_mm512_cmplt_epi16_mask(order, _mm512_set1_epi16(seen)), both);
                }
                highest = _mm512_max_epu16(highest, both);
                // Of each half-word the lower byte's seven bits; the upper byte is all exponent.
                let bits = _mm512_maskz_permutex2var_epi8(0x5555_5555_5555_5555, low, both, high);
                // (both & exponent) | bits
                let words = _mm512_ternarylogic_epi32::<0xf8>(bits, both, exponent);
                let sum = a.sums.add(16 * i);
                let more = std::mem::transmute::<__m512i, __m512bh>(words);
                let total =
                    _mm512_dpbf16_ps(_mm512_loadu_ps(sum), more, std::mem::transmute::<__m512i, __m512bh>(ones));
                _mm512_storeu_ps(sum, total);
                _mm512_storeu_si512(a.weights.add(i * a.ldw).cast(), words);
            }
            _mm512_cmpgt_epu16_mask(highest, _mm512_set1_epi16(a.limit as i16)) != 0
        }
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;
    use crate::simd::unit::ONE;

    #[test]
    fn the_table_is_rounded_to_nearest() {
        for (i, &bits) in BITS.iter().enumerate() {
            let want = bf16::from_f64((i as f64 / 128.0).exp2());
            assert_eq!(0x3f80 + bits as u16, want.to_bits(), "2^({i} / 128)");
        }
    }

    #[test]
    fn every_key_of_a_panel_has_a_place() {
        let mut seen = [0; COLS];
        (0..COLS).for_each(|i| seen[key_at(i)] += 1);
        assert_eq!(seen, [1; COLS]);
    }

    #[test]
    fn panels_become_weights_and_sums() {
        let Some(u) = Avx512Bf16::new() else {
            eprintln!("skipped: this CPU has no AVX512-BF16");
            return;
        };
        let rows = 3;
        let scores: Vec<f32> = (0..rows * COLS).map(|i| (i * 7919 % 2011) as f32 / 40.0 - 45.0).collect();
        let starts = [ONE, ONE - 5.0 * PARTS, ONE + 3.5];
        let seen = [40, 17, 0];
        for (seen, first) in [(None, 0), (Some(&seen[..]), 8)] {
            let mut sums = [1f32; 3 * 16];
            let mut words = [0f32; 3 * 16];
            let panel = WeighPanel {
                scores: scores.as_ptr(),
                lds: COLS,
                rows,
                starts: starts.as_ptr(),
                seen,
                first,
                limit: ONE as u16,
                sums: sums.as_mut_ptr(),
                weights: words.as_mut_ptr(),
                ldw: 16,
            };
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vbmi,avx2,fma,f16c")]
            fn run(u: Avx512Bf16, panel: WeighPanel<'_>) -> bool {
                // SAFETY: the arrays above have these sizes.
                unsafe { u.weigh_panel(panel) }
            }
            // SAFETY: the token.
            let above = unsafe { run(u, panel) };
            let mut largest = 0f32;
            for r in 0..rows {
                let mut sum = 16.0;
                for i in 0..COLS {
                    let key = key_at(i);
                    let bits = words[r * 16 + i / 2].to_bits() >> (16 * (i % 2));
                    let weight = bf16::from_bits(bits as u16).to_f32();
                    let visible = seen.is_none_or(|s| key + first < s[r]);
                    let power = ((starts[r] - ONE) / PARTS + scores[r * COLS + key]).exp2();
                    let want = if visible { power } else { 0.0 };
                    assert!((weight - want).abs() <= 0.007 * want, "{r}, {key}: {weight}, expected {want}");
                    sum += weight;
                    largest = largest.max(weight);
                }
                let got: f32 = sums[16 * r..][..16].iter().sum();
                assert!((got - sum).abs() <= 1e-5 * sum, "{r}: {got}, expected {sum}");
            }
            assert_eq!(above, largest > 1.0);
        }
    }
}
