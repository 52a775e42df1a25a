//! Answers, streamed.

use std::time::{Duration, Instant};

use turbospark_text::{StopStrings, StreamDecoder};

use crate::session::Progress;
use crate::{Cancel, Error, Prompt, Result, Sampler, Sampling, Session};

/// How an answer is made.
#[derive(Clone, Debug, Default)]
pub struct GenerateOptions {
    /// How tokens are chosen; `None` is the checkpoint's own way.
    pub sampling: Option<Sampling>,
    /// Longest answer in tokens; `None` takes the checkpoint's, else what the context holds.
    pub max_tokens: Option<usize>,
    /// The answer ends before the first of these.
    pub stop: Vec<String>,
    /// Go on past the checkpoint's end tokens.
    pub ignore_eos: bool,
    /// Ends the answer from outside.
    pub cancel: Cancel,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended it, or a stop string was met.
    Stop,
    /// It reached the token limit or the end of the context: it is cut.
    Length,
    /// [`Cancel`] was set.
    Cancelled,
}

impl FinishReason {
    /// The word that APIs use: `stop`, `length`, `cancelled`.
    pub const fn as_str(self) -> &'static str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::Cancelled => "cancelled",
        }
    }
}

/// Tokens counted as APIs count them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// Tokens of the prompt, images included.
    pub prompt_tokens: usize,
    /// Of those, tokens that were in the cache already.
    pub reused_tokens: usize,
    /// Tokens generated, the end token included.
    pub completion_tokens: usize,
}

/// Where the time went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Timing {
    /// Images through the tower.
    pub encode: Duration,
    /// The prompt through the trunk.
    pub prefill: Duration,
    /// From the first token to the last.
    pub decode: Duration,
}

/// A whole answer.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Answer {
    /// The text, without end tokens and stop strings.
    pub text: String,
    /// The tokens, end token included.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// Tokens counted.
    pub usage: Usage,
    /// Time spent.
    pub timing: Timing,
}

impl Session {
    /// Answers `prompt`, a piece of text at a time. What the session held is taken over where it is equal and
    /// replaced where it is not.
    ///
    /// # Errors
    /// Settings that make no sense; the prefill's errors come with the first piece.
    pub fn generate<'s>(&'s mut self, prompt: &Prompt, options: &GenerateOptions) -> Result<Generation<'s>> {
        let sampling = options.sampling.clone().unwrap_or_else(|| self.model().sampling());
        sampling.check().map_err(Error::Options)?;
        let room = self.model().context().saturating_sub(prompt.len());
        let checkpoints = self.model().generation_config().max_new_tokens.map(|n| n as usize);
        let max_tokens = options.max_tokens.or(checkpoints).unwrap_or(room).min(room);
        if options.max_tokens == Some(0) {
            return Err(Error::Options("max_tokens is 0: no answer fits".into()));
        }
        Ok(Generation {
            decoder: StreamDecoder::new(self.model().tokenizer()),
            stops: StopStrings::new(options.stop.iter().cloned())?,
            sampler: Sampler::new(sampling, prompt.ids()),
            end_tokens: match options.ignore_eos {
                true => Vec::new(),
                false => self.model().generation_config().eos_token_ids.clone(),
            },
            session: self,
            prompt: prompt.clone(),
            cancel: options.cancel.clone(),
            max_tokens,
            progress: Box::new(|_| {}),
            state: State::Fresh,
            began: Instant::now(),
            answer: Answer {
                text: String::new(),
                tokens: Vec::new(),
                finish_reason: FinishReason::Length,
                usage: Usage { prompt_tokens: prompt.len(), ..Usage::default() },
                timing: Timing::default(),
            },
        })
    }

    /// [`generate`](Session::generate), whole.
    ///
    /// # Errors
    /// As there.
    pub fn answer(&mut self, prompt: &Prompt, options: &GenerateOptions) -> Result<Answer> {
        self.generate(prompt, options)?.finish()
    }
}

enum State {
    /// The prompt is not in yet.
    Fresh,
    /// Logits to choose the next token from.
    Ready(Vec<f32>),
    Ended,
}

/// An answer in the making: an iterator over pieces of text, none of them empty.
pub struct Generation<'s> {
    session: &'s mut Session,
    prompt: Prompt,
    sampler: Sampler,
    decoder: StreamDecoder,
    stops: StopStrings,
    end_tokens: Vec<u32>,
    cancel: Cancel,
    max_tokens: usize,
    progress: Box<dyn FnMut(Progress) + 's>,
    state: State,
    began: Instant,
    answer: Answer,
}

impl<'s> Generation<'s> {
    /// Reports the work before the first piece.
    pub fn on_progress(mut self, progress: impl FnMut(Progress) + 's) -> Self {
        self.progress = Box::new(progress);
        self
    }

    /// The answer so far; whole once the iterator has ended.
    pub fn so_far(&self) -> &Answer {
        &self.answer
    }

    /// Runs to the end.
    ///
    /// # Errors
    /// The first piece's that fails.
    pub fn finish(mut self) -> Result<Answer> {
        self.by_ref().try_for_each(|piece| piece.map(|_| ()))?;
        Ok(self.answer)
    }

    fn step(&mut self) -> Result<Option<String>> {
        loop {
            let mut logits = match std::mem::replace(&mut self.state, State::Ended) {
                State::Ended => return Ok(None),
                State::Ready(logits) => logits,
                State::Fresh => match self.session.prefill(&self.prompt, &self.cancel, &mut self.progress) {
                    Err(Error::Cancelled) => {
                        self.answer.finish_reason = FinishReason::Cancelled;
                        return Ok(None);
                    }
                    done => {
                        let done = done?;
                        self.answer.usage.reused_tokens = done.reused_tokens;
                        self.answer.timing.encode = done.encode;
                        self.answer.timing.prefill = done.prefill;
                        self.began = Instant::now();
                        done.logits
                    }
                },
            };
            if self.cancel.is_cancelled() {
                return Ok(self.end(FinishReason::Cancelled, String::new()));
            }
            let token = self.sampler.sample(&mut logits);
            self.answer.tokens.push(token);
            self.answer.usage.completion_tokens += 1;
            self.answer.timing.decode = self.began.elapsed();
            if self.end_tokens.contains(&token) {
                return Ok(self.end(FinishReason::Stop, String::new()));
            }
            let step = self.stops.push(&self.decoder.push(token));
            if step.stopped.is_some() {
                self.answer.finish_reason = FinishReason::Stop;
                return Ok(self.piece(step.text));
            }
            if self.answer.tokens.len() >= self.max_tokens {
                return Ok(self.end(FinishReason::Length, step.text));
            }
            match self.session.decode_until(token, &self.cancel) {
                Err(Error::Cancelled) => return Ok(self.end(FinishReason::Cancelled, step.text)),
                logits => self.state = State::Ready(logits?),
            }
            self.answer.timing.decode = self.began.elapsed();
            if let Some(piece) = self.piece(step.text) {
                return Ok(Some(piece));
            }
        }
    }

    /// Ends the text: what was held back comes out with the last piece.
    fn end(&mut self, reason: FinishReason, mut text: String) -> Option<String> {
        self.answer.finish_reason = reason;
        let step = self.stops.push(&self.decoder.finish());
        text.push_str(&step.text);
        if step.stopped.is_some() {
            self.answer.finish_reason = FinishReason::Stop;
        } else {
            text.push_str(&self.stops.finish());
        }
        self.piece(text)
    }

    fn piece(&mut self, text: String) -> Option<String> {
        self.answer.text.push_str(&text);
        (!text.is_empty()).then_some(text)
    }
}

impl Iterator for Generation<'_> {
    type Item = Result<String>;

    fn next(&mut self) -> Option<Result<String>> {
        let step = self.step();
        if step.is_err() {
            self.state = State::Ended;
        }
        step.transpose()
    }
}
