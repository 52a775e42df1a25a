//! Which outputs of a layer a thread takes, and in what order it reads their weights.
//!
//! Memory is read fastest in a few long streams. Rows of weights side by side are short streams that break off at every
//! row, which halves the bandwidth (measured on a Zen 4: 12 GB/s, and 25 from streams that lie far apart), and fetching
//! ahead by instruction doesn't make up for it. So a thread's outputs are cut into four parts, and one row of each is
//! read at a time.

use std::ops::Range;

use super::Engine;
use super::finish::Job;

/// Outputs that threads share a layer by.
pub(super) const UNIT: usize = 16;

/// Outputs of a thread that are finished together: their sums stay in the first cache.
pub(super) const WIDTH: usize = 512;

/// Streams.
pub(super) const SIDE: usize = 4;

/// Bytes ahead of a stream that are asked for: enough for the latency, and within the page of a stream's neighbour.
pub(super) const AHEAD: usize = 512;

/// Outputs `units` of `n`, at most [`WIDTH`] at a time.
pub(super) fn pieces(units: Range<usize>, n: usize) -> impl Iterator<Item = Range<usize>> {
    let end = n.min(units.end * UNIT);
    (units.start * UNIT..end).step_by(WIDTH).map(move |first| first..end.min(first + WIDTH))
}

/// Shares the outputs of all `jobs` among threads as if they were one layer's: `f` takes some of job `i`. An output's
/// unit has a `cost` of elementary steps.
pub(super) fn together(
    engine: &Engine,
    jobs: &[Job<'_>],
    cost: impl Fn(&Job<'_>) -> usize,
    f: impl Fn(usize, Range<usize>) + Sync,
) {
    let units = |job: &Job<'_>| if job.rows > 0 { job.linear.n.div_ceil(UNIT) } else { 0 };
    let all = jobs.iter().map(units).sum::<usize>();
    let steps = jobs.iter().map(|job| units(job) * cost(job)).sum::<usize>();
    engine.split(all, steps / all.max(1), |some| {
        let mut first = 0;
        for (i, job) in jobs.iter().enumerate() {
            let end = first + units(job);
            let own = some.start.clamp(first, end) - first..some.end.clamp(first, end) - first;
            first = end;
            if !own.is_empty() {
                f(i, own);
            }
        }
    });
}

/// The streams through some outputs.
#[derive(Clone, Copy)]
pub(super) struct Streams {
    len: usize,
    each: usize,
}

impl Streams {
    /// Through `len` outputs.
    pub(super) fn new(len: usize) -> Self {
        Streams { len, each: len.div_ceil(SIDE) }
    }

    /// Steps of the longest.
    pub(super) fn steps(self) -> usize {
        self.each
    }

    /// How many streams have step `i`: the first ones.
    #[inline(always)]
    pub(super) fn at(self, i: usize) -> usize {
        (0..SIDE).take_while(|s| s * self.each + i < self.len).count()
    }

    /// Outputs from one stream to the next.
    #[inline(always)]
    pub(super) fn apart(self) -> usize {
        self.each
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_output_is_in_one_stream() {
        for len in 1..200 {
            let streams = Streams::new(len);
            let mut seen = vec![0; len];
            for i in 0..streams.steps() {
                (0..streams.at(i)).for_each(|s| seen[s * streams.apart() + i] += 1);
            }
            assert!(seen.iter().all(|&times| times == 1), "{len}: {seen:?}");
        }
        let all: Vec<_> = pieces(3..100, 1203).collect();
        assert_eq!(all, [48..560, 560..1072, 1072..1203]);
    }
}
