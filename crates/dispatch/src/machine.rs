//! The form of a pure state machine: it takes the time and inputs, and returns effects. It does no I/O and reads no clock. A shell executes
//! the effects and passes their results back as inputs.

use whimbrel_model::Timestamp;

pub trait Machine {
    type Now;
    type Input;
    type Effect;

    fn step(&mut self, now: Self::Now, input: Self::Input) -> Vec<Self::Effect>;

    /// When to step again if nothing happens before, by the machine's clock.
    fn wake_at(&self) -> Option<Timestamp>;
}
