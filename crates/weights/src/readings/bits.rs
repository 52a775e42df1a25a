//! Fields of words.

/// Unsigned fields of `bits` from a little-endian bit stream, the first in the lowest bits.
pub(super) fn stream(bytes: &[u8], bits: usize) -> impl Iterator<Item = u8> + '_ {
    (0..bytes.len() * 8 / bits).map(move |i| {
        let at = i * bits;
        let low = u16::from(bytes[at / 8]) | bytes.get(at / 8 + 1).map_or(0, |&b| u16::from(b) << 8);
        (low >> (at % 8)) as u8 & mask(bits)
    })
}

/// Fields of which each 32 lie in planes of bits, the low plane first: of three bits, two words with the low two bits of
/// all 32, then one with their high bits. Fields of 1, 2, 4 and 8 bits are one plane.
pub(super) fn planar(bytes: &[u8], bits: usize) -> Vec<u8> {
    if 8 % bits == 0 {
        return stream(bytes, bits).collect();
    }
    let mut out = Vec::with_capacity(bytes.len() * 8 / bits);
    for block in bytes.chunks_exact(4 * bits) {
        let (mut fields, mut at) = ([0u8; 32], 0);
        for width in [4, 2, 1].into_iter().filter(|width| bits & width != 0) {
            let plane = stream(&block[4 * at..4 * (at + width)], width);
            fields.iter_mut().zip(plane).for_each(|(field, part)| *field |= part << at);
            at += width;
        }
        out.extend(fields);
    }
    out
}

/// Packs fields of `bits` to a little-endian bit stream; `out` is as long as they take and starts as zeros.
pub(super) fn pack(fields: impl Iterator<Item = u8>, bits: usize, out: &mut [u8]) {
    out.fill(0);
    for (i, field) in fields.enumerate() {
        let at = i * bits;
        let wide = u16::from(field) << (at % 8);
        out[at / 8] |= wide as u8;
        if wide > 255 {
            out[at / 8 + 1] |= (wide >> 8) as u8;
        }
    }
}

/// The largest field.
pub(super) const fn mask(bits: usize) -> u8 {
    ((1u16 << bits) - 1) as u8
}

/// 32-bit words of `[a, b]` as `[b, a]`, in tiles, so that both sides stay in the cache.
pub(super) fn turn_words(from: &[u8], a: usize, b: usize, out: &mut [u8]) {
    const TILE: usize = 16;
    let (from, out) = (from.as_chunks::<4>().0, out.as_chunks_mut::<4>().0);
    for (r0, c0) in (0..a).step_by(TILE).flat_map(|r| (0..b).step_by(TILE).map(move |c| (r, c))) {
        for r in r0..a.min(r0 + TILE) {
            for c in c0..b.min(c0 + TILE) {
                out[c * a + r] = from[r * b + c];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_cross_bytes_and_come_back() {
        for bits in 2..=8 {
            let fields: Vec<u8> = (0..64u32).map(|i| (i * 37 % 251) as u8 & mask(bits)).collect();
            let mut bytes = vec![0xff; 64 * bits / 8];
            pack(fields.iter().copied(), bits, &mut bytes);
            assert_eq!(stream(&bytes, bits).collect::<Vec<_>>(), fields, "{bits}");
        }
        assert_eq!(stream(&[0b1101_0001, 0b0000_0111], 3).take(4).collect::<Vec<_>>(), [1, 2, 7, 3]);
    }

    #[test]
    fn planes_come_together() {
        for bits in 2..=8 {
            let fields: Vec<u8> = (0..64u32).map(|i| (i * 37 % 251) as u8 & mask(bits)).collect();
            let mut bytes = Vec::new();
            for block in fields.chunks(32) {
                let (mut rest, mut at) = (bits, 0);
                while rest > 0 {
                    let width = [8, 4, 2, 1].into_iter().find(|&w| w <= rest).unwrap();
                    let mut plane = vec![0; 4 * width];
                    pack(block.iter().map(|f| f >> at & mask(width)), width, &mut plane);
                    bytes.extend(plane);
                    (rest, at) = (rest - width, at + width);
                }
            }
            assert_eq!(planar(&bytes, bits), fields, "{bits}");
        }
    }

    #[test]
    fn words_are_turned() {
        let (a, b) = (20, 33);
        let from: Vec<u8> = (0..(a * b) as u32).flat_map(u32::to_le_bytes).collect();
        let mut out = vec![0; from.len()];
        turn_words(&from, a, b, &mut out);
        let word = |i: usize| u32::from_le_bytes(out[4 * i..4 * i + 4].try_into().unwrap()) as usize;
        assert!((0..b).all(|c| (0..a).all(|r| word(c * a + r) == r * b + c)));
    }
}
