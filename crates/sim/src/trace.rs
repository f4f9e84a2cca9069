//! The last steps of a run, to find the cause of a failure, and the number of all steps.

use std::any::Any;
use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Limit of the steps in a failure.
const TRACE_STEPS: usize = 60;

#[derive(Debug)]
pub struct Trace {
    print: bool,
    /// The number of steps. Each world decides what it counts as one.
    pub steps: u64,
    last: VecDeque<String>,
    hasher: DefaultHasher,
}

impl Trace {
    pub fn new(print: bool) -> Self {
        Self { print, steps: 0, last: VecDeque::with_capacity(TRACE_STEPS), hasher: DefaultHasher::new() }
    }

    pub fn note(&mut self, step: impl FnOnce() -> String) {
        let step = step();
        if self.print {
            println!("{step}");
        }
        step.hash(&mut self.hasher);
        if self.last.len() == TRACE_STEPS {
            self.last.pop_front();
        }
        self.last.push_back(step);
    }

    pub fn last(&self) -> Vec<String> {
        self.last.iter().cloned().collect()
    }

    pub fn fingerprint(&self) -> u64 {
        self.hasher.finish()
    }
}

pub fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a message".to_owned())
}
