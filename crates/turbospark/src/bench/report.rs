//! What a measurement gives.

use std::time::Duration;

use turbospark_device::{Limits, OpTime};

use super::work::{EncodeFlops, TokenFlops};
use crate::{Reads, Visit};

/// What was measured.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// Threads that compute, of a device that has them.
    pub threads: usize,
    /// What the machine can do; `None` from a device that doesn't measure itself, and where the memory ceiling leaves no
    /// room for measuring.
    pub limits: Option<Limits>,
    /// The fastest arithmetic that the precision allows, operations a second.
    pub peak_ops_per_s: Option<f64>,
    /// One an image.
    pub encode: Vec<Encode>,
    /// One a prompt length.
    pub prefill: Vec<Prefill>,
    /// Where it was asked for.
    pub decode: Option<Decode>,
    /// The most memory that the process had in use, mapped files included, before the limits were measured; `None`
    /// where the system doesn't tell.
    pub peak_rss_bytes: Option<u64>,
}

/// Times of one picture in the tower, from patches to rows.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Encode {
    /// Width and height as asked for.
    pub size: (usize, usize),
    /// Patches along time, height and width.
    pub grid_thw: [usize; 3],
    /// Rows for the prompt.
    pub tokens: usize,
    /// The work.
    pub flops: EncodeFlops,
    /// Each run.
    pub times: Vec<Duration>,
    /// What each op took in one more run, where [asked for](super::BenchOptions::ops) and the device tells.
    pub ops: Option<Vec<OpTime>>,
}

/// Times of one prompt in the trunk, with the logits of its last token.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Prefill {
    /// Its length.
    pub tokens: usize,
    /// The work.
    pub flops: TokenFlops,
    /// Each run.
    pub times: Vec<Duration>,
    /// What each op took in one more run, where [asked for](super::BenchOptions::ops) and the device tells.
    pub ops: Option<Vec<OpTime>>,
}

/// Times of decoding, without sampling.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Decode {
    /// Tokens decoded for each sequence.
    pub tokens: usize,
    /// Tokens of each sequence before.
    pub depth: usize,
    /// Sequences decoded together.
    pub batch: usize,
    /// Bytes that a token reads: the weights of a pass, shared by the batch, and its own keys, values and states.
    pub bytes_per_token: f64,
    /// The part of [`Decode::bytes_per_token`] that is weights.
    pub weight_bytes_per_token: f64,
    /// The work of all tokens of a run.
    pub flops: TokenFlops,
    /// Each run, of `tokens` passes.
    pub times: Vec<Duration>,
    /// What each op took in one more run, with what of the prompt was not in the cache, where
    /// [asked for](super::BenchOptions::ops) and the device tells.
    pub ops: Option<Vec<OpTime>>,
    /// Where weights stay on the disk: what all timed runs read.
    pub streaming: Option<Streaming>,
}

/// What decoding read from the disk, and what the disk could have given.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Streaming {
    /// Of all timed runs.
    pub reads: Reads,
    /// Bytes that a pass had to read, without guesses that were wrong; several sequences share it.
    pub bytes_per_pass: f64,
    /// Bytes a second of direct reads of the same files, measured after each run: disks with an allowance are fast
    /// until it is used up. Empty without a disk.
    pub disk_bytes_per_s: Vec<f64>,
    /// Layers that had to read experts which their router had chosen, in all timed runs.
    pub visits: Vec<Visit>,
}

impl Streaming {
    /// The middle of what was measured.
    pub fn disk(&self) -> Option<f64> {
        let mut sorted = self.disk_bytes_per_s.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied()
    }
}

/// The middle of `times`, or of the middle two.
pub fn median(times: &[Duration]) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort();
    match sorted.len() {
        0 => Duration::ZERO,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2,
    }
}

impl Encode {
    /// Patches of the picture.
    pub fn patches(&self) -> usize {
        self.grid_thw.iter().product()
    }

    /// Operations a second, of the median.
    pub fn flops_per_s(&self) -> f64 {
        per_second(self.flops.total(), &self.times)
    }
}

impl Prefill {
    /// Tokens a second, of the median.
    pub fn tokens_per_s(&self) -> f64 {
        per_second(self.tokens as f64, &self.times)
    }

    /// Operations a second, of the median.
    pub fn flops_per_s(&self) -> f64 {
        per_second(self.flops.total(), &self.times)
    }
}

impl Decode {
    /// Tokens a second of all sequences together, of the median.
    pub fn tokens_per_s(&self) -> f64 {
        per_second((self.tokens * self.batch) as f64, &self.times)
    }

    /// Bytes a second, of the median.
    pub fn bytes_per_s(&self) -> f64 {
        self.tokens_per_s() * self.bytes_per_token
    }

    /// The part of the disk's bandwidth that decoding used: bytes that had to be read, of the median run, against the
    /// middle of what was measured between the runs.
    pub fn disk_share(&self) -> Option<f64> {
        let s = self.streaming.as_ref()?;
        let passes_per_s = self.tokens_per_s() / self.batch as f64;
        s.disk().map(|disk| s.bytes_per_pass * passes_per_s / disk)
    }

    /// What the slower of disk and computing would take alone, as a part of what both took: 1 where the other is hidden
    /// whole. Computing is what was not waited.
    pub fn hidden_share(&self) -> Option<f64> {
        let computing = 1.0 - self.stall_share()?;
        self.disk_share().map(|disk| disk.max(computing))
    }

    /// The least time that the run's reads and computing could have taken, as a part of what they did.
    ///
    /// What a router chooses can be read only between its choice and the layer's last expert, beside what computes there;
    /// all else of that layer, and layers that miss nothing, take turns with it. So no run is shorter than computing
    /// outside of such visits, and of each visit the longer of its computing and of its reading with the last expert
    /// after it; nor than all reading. Without experts it is the slower of disk and computing.
    pub fn bound_share(&self) -> Option<f64> {
        let s = self.streaming.as_ref()?;
        let disk = s.disk()?;
        let all = self.times.iter().sum::<Duration>().as_secs_f64();
        let visits = |of: &dyn Fn(&Visit) -> f64| s.visits.iter().map(of).sum::<f64>();
        let (inside, stalled) = (visits(&|v| v.computing.as_secs_f64()), visits(&|v| v.stalled.as_secs_f64()));
        let outside = all - inside - s.reads.stalled.as_secs_f64().max(stalled);
        let least = |v: &Visit| (v.bytes as f64 / disk + v.last.as_secs_f64()).max(v.computing.as_secs_f64());
        let reading = (s.reads.bytes - s.reads.vain_bytes) as f64 / disk;
        Some((outside + visits(&least)).max(reading) / all.max(1e-9))
    }

    /// The part of the time that passes waited for the disk.
    pub fn stall_share(&self) -> Option<f64> {
        let all: Duration = self.times.iter().sum();
        self.streaming.as_ref().map(|s| s.reads.stalled.as_secs_f64() / all.as_secs_f64().max(1e-9))
    }
}

fn per_second(n: f64, times: &[Duration]) -> f64 {
    n / median(times).as_secs_f64().max(1e-9)
}
