//! Images through the tower, those of one prompt or of several.
//!
//! Where blocks of the tower are read again for each use, images that wait go through each block together, so that they
//! share the reading: all of them through block `n` before block `n + 1` is fetched. What an image becomes does not
//! depend on its company.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use turbospark_models::{ImageRows, ModelError, Patches, VisionInput};

use crate::model::{HeldRows, cancelled};
use crate::session::Progress;
use crate::{Cancel, Error, Model, Pixels, Prompt, Result, Session, Visual};

/// What names an image: its pixels and how they were sized.
pub(crate) type Digest = [u8; 32];

/// What an image became, and the memory that counts for it.
#[derive(Clone, Debug)]
pub(crate) struct HeldImage {
    pub rows: ImageRows,
    _held: Arc<HeldRows>,
}

impl HeldImage {
    pub fn new(rows: ImageRows, held: Arc<HeldRows>) -> Self {
        HeldImage { rows, _held: held }
    }
}

/// Embeddings of images, made before the prompts that ask for them: see [`Model::encode`].
#[derive(Clone, Debug, Default)]
pub struct Encoded {
    rows: HashMap<Digest, (HeldImage, Duration)>,
}

impl Encoded {
    /// Number of images, each counted once.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

impl Model {
    /// How many patches of waiting images are best encoded at once, by [`Model::encode`]; `None` where each may as well
    /// go alone, because the tower is in memory.
    pub fn patches_at_once(&self) -> Option<usize> {
        let tower = self.inner.model.vision.as_ref()?;
        tower.is_streamed().then(|| self.memory_plan().most_patches)
    }

    /// Encodes the images of several prompts ahead, for [`Session::take_encoded`]; they share the reading of a tower
    /// that is read again for each use. All rows stay in memory until the last of them is dropped: of more patches
    /// than [`Model::patches_at_once`] that is more than the plan has room for.
    ///
    /// # Errors
    /// [`Error::Cancelled`]; the device's.
    pub fn encode(&self, prompts: &[&Prompt], cancel: &Cancel, progress: &mut dyn FnMut(Progress)) -> Result<Encoded> {
        let mut known = BTreeSet::new();
        let visuals = prompts.iter().flat_map(|prompt| prompt.visuals()).filter(|v| known.insert(v.digest));
        let visuals: Vec<&Visual> = visuals.collect();
        let began = Instant::now();
        let rows = run_tower(self, &visuals, cancel, progress);
        self.engine().vision_scratch.clear();
        let rows = rows?;
        // Each image's share of the time, by its patches.
        let all: usize = visuals.iter().map(|v| v.grid.patches()).sum();
        let took = began.elapsed();
        let share = |v: &Visual| took.mul_f64(v.grid.patches() as f64 / all.max(1) as f64);
        let shares = visuals.iter().map(|v| share(v));
        Ok(Encoded { rows: rows.into_iter().zip(shares).map(|((d, rows), share)| (d, (rows, share))).collect() })
    }

    /// Refuses a prompt whose images are more together than there is room for.
    pub(crate) fn check_images(&self, prompt: &Prompt) -> Result<()> {
        let plan = self.memory_plan();
        let patches: usize = prompt.visuals().iter().map(|v| v.grid.patches()).sum();
        if plan.patches().is_none_or(|most| patches <= most) {
            return Ok(());
        }
        Err(Error::Unsupported(format!(
            "the images of this prompt take {patches} patches together, and memory leaves room for {}: give fewer or \
             smaller images (--max-pixels), or a larger --memory",
            plan.most_patches
        )))
    }
}

impl Session {
    /// Uses embeddings that were made ahead for images of the next prompt.
    pub fn take_encoded(&mut self, encoded: &Encoded) {
        for (digest, (rows, share)) in &encoded.rows {
            self.visuals.insert(*digest, rows.clone());
            self.encoded_ahead.insert(*digest, *share);
        }
    }

    /// Runs the tower for the images that have rows at or after `start` and are not there yet; the time that was spent
    /// on the prompt's images ahead.
    pub(crate) fn encode(
        &mut self,
        prompt: &Prompt,
        start: usize,
        cancel: &Cancel,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Duration> {
        self.model().check_images(prompt)?;
        let digests: Vec<Digest> = prompt.visuals().iter().map(|v| v.digest).collect();
        self.visuals.retain(|digest, _| digests.contains(digest));
        let ahead = std::mem::take(&mut self.encoded_ahead);
        let ahead = ahead.iter().filter(|(digest, _)| digests.contains(digest)).map(|(_, share)| *share).sum();
        // The same picture twice is encoded once.
        let mut known: BTreeSet<Digest> = self.visuals.keys().copied().collect();
        let spans = prompt.spans().iter().filter(|s| s.range.end > start);
        let wanted = spans.map(|s| &prompt.visuals()[s.visual]).filter(|v| known.insert(v.digest));
        let wanted: Vec<&Visual> = wanted.collect();
        let rows = run_tower(self.model(), &wanted, cancel, progress)?;
        self.visuals.extend(rows);
        Ok(ahead)
    }
}

/// Encodes distinct images: one at a time, or as many together as there is room for where they share the reading.
fn run_tower(
    model: &Model,
    visuals: &[&Visual],
    cancel: &Cancel,
    progress: &mut dyn FnMut(Progress),
) -> Result<Vec<(Digest, HeldImage)>> {
    let of = visuals.len();
    let mut done = Vec::with_capacity(of);
    let mut rest = visuals;
    while !rest.is_empty() {
        if cancel.is_cancelled() {
            return Err(Error::Cancelled);
        }
        progress(Progress::Encode { images: of - rest.len(), of });
        let tower = model.inner.model.vision.as_ref().ok_or(ModelError::NoVision)?;
        let most = model.patches_at_once().unwrap_or(0);
        let mut patches = 0;
        let fits = |v: &&&Visual| {
            patches += v.grid.patches();
            patches <= most
        };
        let (now, later) = rest.split_at(rest.iter().take_while(fits).count().max(1));
        let writes: Vec<_> = now.iter().map(|v| writer(v)).collect();
        let span = tracing::debug_span!("encode", images = now.len()).entered();
        let inputs = now.iter().zip(&writes).map(|(v, write)| {
            let grid = v.grid;
            let patches = match &v.pixels {
                Pixels::Patches(patches) => Patches::Whole(patches),
                Pixels::Picture(picture) => Patches::Made { values: picture.patches_len(), write },
            };
            VisionInput { grid_thw: [grid.t, grid.h, grid.w], patches }
        });
        let inputs: Vec<VisionInput<'_>> = inputs.collect();
        let mut engine = model.engine();
        engine.tower_ran = true;
        model.make_room(&mut engine);
        let rows = {
            let _watched = model.cancel_reads_by(cancel);
            let rows = tower.encode(model.device(), &inputs, &mut engine.vision_scratch, None).map_err(cancelled)?;
            model.device().finish().map_err(ModelError::from)?;
            rows
        };
        model.checkpoint().check_intact()?;
        drop((span, engine));
        let held = model.hold_rows(rows.iter().map(|rows| 4 * rows.view().shape().elements() as u64).sum());
        let rows = rows.into_iter().map(|rows| HeldImage::new(rows, held.clone()));
        done.extend(now.iter().map(|v| v.digest).zip(rows));
        rest = later;
    }
    if of > 0 {
        progress(Progress::Encode { images: of, of });
    }
    Ok(done)
}

/// Makes a picture's patches, some at a time; what an image without pixels has is there.
fn writer(v: &Visual) -> impl Fn(Range<usize>, &mut [f32]) + '_ {
    move |range, out| {
        if let Pixels::Picture(picture) = &v.pixels {
            picture.write_some_patches(range, out).expect("a range of the picture's patches");
        }
    }
}
