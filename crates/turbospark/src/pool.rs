/// Numbers handed out one by one and given back: pages, state slots.
#[derive(Debug)]
pub(crate) struct Pool {
    free: Vec<u32>,
    all: usize,
}

impl Pool {
    pub(crate) fn new(all: usize) -> Self {
        Pool { free: (0..all as u32).rev().collect(), all }
    }

    pub(crate) fn all(&self) -> usize {
        self.all
    }

    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }

    pub(crate) fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    pub(crate) fn give_back(&mut self, numbers: impl IntoIterator<Item = u32>) {
        self.free.extend(numbers);
        debug_assert!(self.free.len() <= self.all, "a number was given back twice");
    }
}
