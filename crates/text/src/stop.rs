//! Stop strings over streamed text.
//!
//! A stop string may lie across any number of deltas, so text that could still turn out to be the
//! beginning of one is held back, and nothing else is. The result does not depend on how the text was
//! cut: the match that *ends* first wins, and of those that end together the longest, which is what a
//! reader of single characters would find.

use crate::error::{Result, TextError};

/// Watches streamed text for stop strings.
///
/// ```
/// # use turbospark_text::StopStrings;
/// let mut stops = StopStrings::new(["</answer>".to_string()])?;
/// assert_eq!(stops.push("42</an").text, "42");
/// let step = stops.push("swer> and more");
/// assert_eq!((step.text.as_str(), step.stopped), ("", Some(0)));
/// # Ok::<(), turbospark_text::TextError>(())
/// ```
#[derive(Clone, Debug)]
pub struct StopStrings {
    stops: Vec<String>,
    /// The end of the text so far that is the beginning of some stop string.
    held: String,
    stopped: Option<usize>,
}

/// What one delta gave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopStep {
    /// Text that can be sent now. It holds no part of the stop string.
    pub text: String,
    /// The stop string that was met, by its place in the list. Later deltas give nothing.
    pub stopped: Option<usize>,
}

impl StopStrings {
    /// A matcher for these strings; none at all is fine, an empty one is refused.
    pub fn new(stops: impl IntoIterator<Item = String>) -> Result<Self> {
        let stops: Vec<String> = stops.into_iter().collect();
        if let Some(at) = stops.iter().position(String::is_empty) {
            return Err(TextError::EmptyStop(at));
        }
        Ok(StopStrings { stops, held: String::new(), stopped: None })
    }

    /// Takes the next delta.
    pub fn push(&mut self, delta: &str) -> StopStep {
        if self.stopped.is_some() {
            return StopStep { text: String::new(), stopped: self.stopped };
        }
        self.held.push_str(delta);
        if let Some((index, start)) = self.first_match() {
            self.held.truncate(start);
            self.stopped = Some(index);
            return StopStep { text: std::mem::take(&mut self.held), stopped: self.stopped };
        }
        let keep = self.possible_prefix();
        let held = self.held.split_off(self.held.len() - keep);
        StopStep { text: std::mem::replace(&mut self.held, held), stopped: None }
    }

    /// Ends the text: what was held back turned out to be no stop string.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// The stop string that was met, if any.
    pub fn stopped(&self) -> Option<usize> {
        self.stopped
    }

    fn first_match(&self) -> Option<(usize, usize)> {
        let found = self.stops.iter().enumerate().filter_map(|(index, stop)| {
            let start = self.held.find(stop.as_str())?;
            Some((start + stop.len(), start, index))
        });
        found.min().map(|(_, start, index)| (index, start))
    }

    /// Bytes at the end of `held` that begin some stop string.
    fn possible_prefix(&self) -> usize {
        let longest = self.stops.iter().map(|stop| stop.len() - 1).max();
        let longest = longest.unwrap_or(0).min(self.held.len());
        let from = self.held.len() - longest;
        let tails = (from..self.held.len()).filter(|&at| self.held.is_char_boundary(at));
        tails
            .map(|at| &self.held[at..])
            .find(|tail| self.stops.iter().any(|stop| stop.starts_with(tail)))
            .map_or(0, str::len)
    }
}
