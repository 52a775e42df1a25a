//! Measuring a model: the tower, prompts and decoding, with the work of each.
//!
//! Every part runs once untimed, which brings its weights and scratch in, and then as often as asked; medians are
//! reported. Token ids are random and fed as they are, pictures are noise: no speed here depends on values, but
//! for experts, which random rows spread evenly. What goes wrong unseen: a prompt that the cache holds already is
//! no work, so a timed prompt always runs in an empty session.
//!
//! ```
//! use turbospark::bench::{BenchOptions, bench};
//! # fn main() -> turbospark::Result<()> {
//! # #[cfg(feature = "embedded-model")] {
//! let options = BenchOptions { images: vec![(64, 64)], prefill: vec![16], decode: 2, reps: 1, ..Default::default() };
//! let model = turbospark::Model::embedded(&options.load(Default::default()))?;
//! let report = bench(&model, &options, &mut |_| ())?;
//! assert_eq!(report.encode[0].patches(), 16);
//! # }
//! # Ok(())
//! # }
//! ```

mod checkpoint;
mod report;
mod shapes;
pub mod work;

use std::time::{Duration, Instant};

use turbospark_device::{Inputs, MemoryKind, OpTime, Precision};
use turbospark_models::{ModelError, Patches, VisionInput};
use turbospark_vision::{Picture, Rgb};

use crate::{Cancel, Error, LoadOptions, Model, Prompt, PromptParts, Reads, Result, Session};
pub(crate) use checkpoint::unit_sizes;
pub use checkpoint::{build_checkpoint, cache_folder};
pub use report::{Decode, Encode, Prefill, Report, Streaming, median};
pub use shapes::Shape;
use work::{EncodeFlops, TokenFlops};

/// What is measured. An empty list, or 0 tokens, leaves a part out.
#[derive(Clone, Debug)]
pub struct BenchOptions {
    /// Widths and heights of pictures; each side is taken to the nearest multiple of a merged patch.
    pub images: Vec<(usize, usize)>,
    /// Lengths of prompts.
    pub prefill: Vec<usize>,
    /// Tokens to decode for each sequence.
    pub decode: usize,
    /// Tokens in the cache of each sequence before decoding.
    pub depth: usize,
    /// Sequences that are decoded together.
    pub batch: usize,
    /// Timed runs of each part.
    pub reps: usize,
    /// One more run of each part, with its ops timed one by one.
    pub ops: bool,
    /// Ends it between two runs or tokens.
    pub cancel: Cancel,
}

impl Default for BenchOptions {
    fn default() -> Self {
        BenchOptions {
            images: vec![(1024, 1024)],
            prefill: vec![512],
            decode: 64,
            depth: 128,
            batch: 1,
            reps: 3,
            ops: false,
            cancel: Cancel::new(),
        }
    }
}

impl BenchOptions {
    /// `options` with a cache that holds what is measured and no more.
    pub fn load(&self, options: LoadOptions) -> LoadOptions {
        let longest = self.prefill.iter().map(|n| n + 1).max().unwrap_or(2);
        let decoded = if self.decode > 0 { self.depth + self.decode + 1 } else { 0 };
        let context = options.context.unwrap_or(longest.max(decoded));
        LoadOptions { context: Some(context), sequences: self.batch.max(1), ..options }
    }
}

/// What is being done, for a line of progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stage {
    /// The machine's limits.
    Limits,
    /// A picture of this width and height through the tower.
    Encode(usize, usize),
    /// A prompt of so many tokens.
    Prefill(usize),
    /// Decoding so many sequences.
    Decode(usize),
}

/// Measures `model`, which was loaded with room for it ([`BenchOptions::load`]).
///
/// # Errors
/// A text-only model that is to encode; a context that is too short; [`Error::Cancelled`]; the device's.
pub fn bench(model: &Model, options: &BenchOptions, progress: &mut dyn FnMut(Stage)) -> Result<Report> {
    if options.reps == 0 || options.batch == 0 || options.depth == 0 || options.prefill.contains(&0) {
        return Err(Error::Options("runs, sequences and tokens of a prompt must be 1 or more".into()));
    }
    let mut report = Report {
        threads: model.inner.demand.threads,
        limits: None,
        peak_ops_per_s: None,
        encode: Vec::new(),
        prefill: Vec::new(),
        decode: None,
        peak_rss_bytes: None,
    };
    for &size in &options.images {
        progress(Stage::Encode(size.0, size.1));
        report.encode.push(encode(model, size, options)?);
    }
    for &tokens in &options.prefill {
        progress(Stage::Prefill(tokens));
        report.prefill.push(prefill(model, tokens, options)?);
    }
    if options.decode > 0 {
        progress(Stage::Decode(options.batch));
        report.decode = Some(decode(model, options)?);
    }
    // Last, since measuring memory takes more of it than many a model; not where a ceiling leaves no room for it.
    report.peak_rss_bytes = crate::memory::peak_bytes();
    let room = model.memory_plan().ceiling.is_none_or(|c| c > report.peak_rss_bytes.unwrap_or(0) + LIMITS_ROOM);
    if room {
        progress(Stage::Limits);
        report.limits = model.device().limits()?;
        report.threads = report.limits.as_ref().map_or(report.threads, |limits| limits.threads);
    }
    let floats: &[Inputs] = match model.device().precision() {
        Precision::F32 => &[Inputs::F32],
        Precision::Auto => &[Inputs::F32, Inputs::Bf16, Inputs::F16],
    };
    report.peak_ops_per_s = report.limits.as_ref().and_then(|l| l.peak(floats)).map(|p| p.ops_per_s);
    Ok(report)
}

/// What measuring the machine's memory may take.
const LIMITS_ROOM: u64 = 5 << 28;

/// Each run's time, and what ops took in a last one.
type Times = (Vec<Duration>, Option<Vec<OpTime>>);

/// One untimed run and `reps` timed ones, and one for ops; a run gives its own time.
fn timed(model: &Model, options: &BenchOptions, mut run: impl FnMut() -> Result<Duration>) -> Result<Times> {
    let mut times = Vec::new();
    for _ in 0..=options.reps {
        if options.cancel.is_cancelled() {
            return Err(Error::Cancelled);
        }
        times.push(run()?);
    }
    times.remove(0);
    let mut ops = None;
    if options.ops {
        let mut done = Ok(Duration::ZERO);
        ops = model.device().time_ops(&mut || done = run())?;
        done?;
    }
    Ok((times, ops))
}

fn encode(model: &Model, (width, height): (usize, usize), options: &BenchOptions) -> Result<Encode> {
    let tower = model.inner.model.vision.as_ref().ok_or(ModelError::NoVision)?;
    let picture = picture(model, width, height)?;
    let grid_thw = [picture.grid.t, picture.grid.h, picture.grid.w];
    // A processor's time is also that of making patches, a thousandth of it; an adapter's isn't the host's.
    let ready = if model.device().memory_kind() == MemoryKind::Host { Vec::new() } else { picture.patches() };
    let times = timed(model, options, || {
        let mut engine = model.engine();
        model.make_room(&mut engine);
        let began = Instant::now();
        let write = |range, out: &mut [f32]| picture.write_some_patches(range, out).expect("a range of its patches");
        let made = Patches::Made { values: picture.patches_len(), write: &write };
        let patches = if ready.is_empty() { made } else { Patches::Whole(&ready) };
        let input = VisionInput { grid_thw, patches };
        tower.encode(model.device(), &[input], &mut engine.vision_scratch, None)?;
        model.device().finish()?;
        Ok(began.elapsed())
    });
    model.engine().vision_scratch.clear();
    let (times, ops) = times?;
    Ok(Encode {
        size: (width, height),
        grid_thw,
        tokens: picture.tokens(),
        flops: EncodeFlops::of(tower.config(), grid_thw),
        times,
        ops,
    })
}

/// Noise, sized as if the checkpoint set no limits.
fn picture(model: &Model, width: usize, height: usize) -> Result<Picture> {
    let source = |source| Error::Image { number: 1, source };
    let config = model.image_config().ok_or(ModelError::NoVision)?.clone();
    let most = width.saturating_mul(height).saturating_mul(4).max(config.max_pixels);
    let least = config.layout.factor().pow(2);
    let config = config.with_limits(Some(least), Some(most)).map_err(|e| source(e.into()))?;
    let mut random = Random(1);
    let data = (0..width * height * 3).map(|_| random.below(256) as u8).collect();
    let rgb = Rgb::new(width, height, data).map_err(source)?;
    Picture::from_rgb(rgb, &config, &model.inner.decode_limits).map_err(source)
}

fn prefill(model: &Model, tokens: usize, options: &BenchOptions) -> Result<Prefill> {
    let prompt = prompt(model, tokens, 2)?;
    let mut session = model.session();
    let (times, ops) = timed(model, options, || {
        session.clear();
        Ok(session.prefill(&prompt, &options.cancel, &mut |_| ())?.prefill)
    })?;
    Ok(Prefill { tokens, flops: TokenFlops::of(model.config(), 0, tokens, 1), times, ops })
}

fn decode(model: &Model, options: &BenchOptions) -> Result<Decode> {
    let &BenchOptions { decode: tokens, depth, batch, .. } = options;
    let prompts = (0..batch).map(|i| prompt(model, depth, 3 + i as u64)).collect::<Result<Vec<_>>>()?;
    let mut sessions: Vec<Session> = (0..batch).map(|_| model.session()).collect();
    let mut random = Random(2);
    let streams = model.memory_plan().streams();
    let mut disk = Vec::new();
    let mut reads: Vec<Reads> = Vec::new();
    let mut visits = Vec::new();
    let (times, ops) = timed(model, options, || {
        // Back to the prompt; most of it is in the cache.
        for (session, prompt) in sessions.iter_mut().zip(&prompts) {
            session.prefill(prompt, &options.cancel, &mut |_| ())?;
        }
        let already = model.reads().unwrap_or_default();
        model.note_visits(true);
        let began = Instant::now();
        for _ in 0..tokens {
            if options.cancel.is_cancelled() {
                return Err(Error::Cancelled);
            }
            let mut steps: Vec<(&mut Session, u32)> =
                sessions.iter_mut().map(|session| (session, random.token(model))).collect();
            Session::decode_together(&mut steps)?;
        }
        let took = began.elapsed();
        visits.push(model.note_visits(false));
        reads.push(model.reads().unwrap_or_default().since(&already));
        if streams {
            // Until what is read ahead is there: it would share the disk.
            std::thread::sleep(Duration::from_millis(500));
            disk.extend(model.measure_read_speed()?.map(|speed| speed.bytes_per_s));
        }
        Ok(took)
    })?;
    reads.remove(0); // untimed
    reads.truncate(options.reps);
    let visits = visits.into_iter().skip(1).take(options.reps).flatten().collect();
    let all = reads.iter().fold(Reads::default(), |all, run| all.and(run));
    let streaming = streams.then(|| Streaming {
        reads: all,
        bytes_per_pass: (all.bytes - all.vain_bytes) as f64 / (tokens * reads.len()) as f64,
        disk_bytes_per_s: disk,
        visits,
    });
    let shape = model.engine().cache.shape();
    let text = &model.config().text;
    let keys = depth as f64 + (tokens as f64 + 1.0) / 2.0; // that a token sees, on average
    let own = keys * shape.bytes_per_token(text) as f64 + shape.bytes_per_state(text) as f64;
    let weights = model.inner.model.trunk.weight_bytes(batch) / batch as f64;
    let one = TokenFlops::of(model.config(), depth, tokens, tokens);
    let batched = |x: f64| x * batch as f64;
    Ok(Decode {
        tokens,
        depth,
        batch,
        bytes_per_token: weights + own,
        weight_bytes_per_token: weights,
        flops: TokenFlops {
            linear: batched(one.linear),
            attention: batched(one.attention),
            delta: batched(one.delta),
            head: batched(one.head),
        },
        times,
        ops,
        streaming,
    })
}

/// A prompt of random text tokens.
fn prompt(model: &Model, tokens: usize, seed: u64) -> Result<Prompt> {
    let mut random = Random(seed);
    let ids = (0..tokens).map(|_| random.token(model)).collect();
    let positions = (0..tokens as u32).map(|i| [i; 3]).collect();
    let parts = PromptParts { ids, positions, ..Default::default() };
    Ok(Prompt::new(parts, &model.prompt_limits())?)
}

/// splitmix64.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random(seed)
    }

    /// From 0 to 1, below it.
    pub(crate) fn part(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// The numbers below `n` in some order.
    pub(crate) fn shuffled(&mut self, n: usize) -> Vec<usize> {
        let mut all: Vec<usize> = (0..n).collect();
        for i in (1..n).rev() {
            all.swap(i, self.below(i as u64 + 1) as usize);
        }
        all
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// An id that stands for no image.
    fn token(&mut self, model: &Model) -> u32 {
        let c = model.config();
        loop {
            let id = self.below(c.text.vocab_size as u64) as u32;
            if ![c.image_token_id, c.video_token_id].contains(&Some(id)) {
                return id;
            }
        }
    }
}
