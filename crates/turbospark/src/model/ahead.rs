//! Mapped weights that aren't in memory yet.
//!
//! Each page would be waited for when it is first used, and small reads leave a drive idle between two of them: the first
//! answer of a cold model took twice its time. So the system is asked for all of it in the order of use, in the
//! background, by advice that it may ignore.

use std::sync::Arc;
use std::time::{Duration, Instant};

use turbospark_models::Planned;
use turbospark_weights::{Checkpoint, Linear, Piece, Place};

/// Bytes below which a thread isn't worth starting.
const LEAST: u64 = 64 << 20;

/// Tensors that are asked for at once.
const WINDOW: usize = 6;
/// Who hasn't brought a tensor after so long takes no advice, or gave it away again.
const IGNORED: Duration = Duration::from_secs(2);

/// Has the system read `planned` tensors ahead of their use; ends early when the checkpoint is dropped.
pub(super) fn fetch_ahead(checkpoint: &Arc<Checkpoint>, planned: &[Planned]) {
    // The tower is used first.
    let (mut places, trunk): (Vec<&Planned>, Vec<&Planned>) = planned.iter().partition(|t| t.name.contains(".visual."));
    places.extend(trunk);
    let places: Vec<Place> = places.into_iter().flat_map(places_of).collect();
    if places.iter().map(|place| place.length).sum::<u64>() < LEAST {
        return;
    }
    let checkpoint = Arc::downgrade(checkpoint);
    let ask = move || {
        for (i, place) in places.iter().enumerate() {
            let began = Instant::now();
            loop {
                let Some(checkpoint) = checkpoint.upgrade() else { return };
                // What is asked for first must not wait behind all the rest.
                if i.checked_sub(WINDOW).is_none_or(|before| checkpoint.is_cached(&places[before])) {
                    checkpoint.fetch_ahead(place);
                    break;
                }
                if began.elapsed() > IGNORED {
                    return;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    };
    let _ = std::thread::Builder::new().name("ahead".into()).spawn(ask);
}

/// Where a tensor's parts lie in files.
pub(super) fn places_of(tensor: &Planned) -> Vec<Place> {
    let place = |piece: &Piece| match piece {
        Piece::Place(place) => Some(*place),
        Piece::Made(_) => None,
    };
    match &tensor.source {
        Linear::Piece(piece) => place(piece).into_iter().collect(),
        Linear::Scaled(scaled) => scaled.pieces().filter_map(place).collect(),
    }
}
