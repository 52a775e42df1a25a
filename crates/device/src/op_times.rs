use std::collections::HashMap;
use std::time::Duration;

/// What all runs of one op took, where a device [was asked](crate::Device::time_ops).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpTime {
    /// The op as [`Op::label`](crate::Op::label) has it; a device that runs several kernels for it says which.
    pub op: String,
    /// How often it ran.
    pub runs: u64,
    /// How long all runs took.
    pub time: Duration,
}

/// Adds up what ops take.
#[derive(Debug, Default)]
pub struct OpTimes(HashMap<String, (u64, Duration)>);

impl OpTimes {
    /// One more run of an op.
    pub fn add(&mut self, op: String, time: Duration) {
        let (runs, all) = self.0.entry(op).or_default();
        *runs += 1;
        *all += time;
    }

    /// The sums, the longest first.
    pub fn sums(self) -> Vec<OpTime> {
        let mut sums: Vec<OpTime> = self.0.into_iter().map(|(op, (runs, time))| OpTime { op, runs, time }).collect();
        sums.sort_by(|a, b| b.time.cmp(&a.time).then_with(|| a.op.cmp(&b.op)));
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_add_up_and_the_longest_comes_first() {
        let mut times = OpTimes::default();
        for (op, ms) in [("a", 3), ("b", 4), ("a", 2)] {
            times.add(op.into(), Duration::from_millis(ms));
        }
        let sums = times.sums();
        let of = |i: usize| (sums[i].op.as_str(), sums[i].runs, sums[i].time.as_millis());
        assert_eq!([of(0), of(1)], [("a", 2, 5), ("b", 1, 4)]);
    }
}
