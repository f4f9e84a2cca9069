//! The counts of a run of deliveries.

use std::fmt;

use crate::simulation::counts;

counts! {
    /// Counts of the events of a run.
    pub struct DeliveriesCounts {
        pub messages: u64,
        pub calls: u64,
        pub taken: u64,
        pub taken_again: u64,
        pub held: u64,
        pub buried: u64,
        pub dropped: u64,
        pub crashes: u64,
        pub takeovers: u64,
        pub seeks: u64,
        pub growths: u64,
        pub trims: u64,
        pub store_falls: u64,
    }
}

impl fmt::Display for DeliveriesCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { messages, calls, taken, taken_again, held, buried, dropped, .. } = self;
        let Self { crashes, takeovers, seeks, growths, trims, store_falls, .. } = self;
        writeln!(
            f,
            "{messages} messages, {calls} calls: {taken} taken, {taken_again} times again; {held} holds, {buried} dead letters, \
             {dropped} dropped"
        )?;
        write!(
            f,
            "{crashes} crashes, {takeovers} takeovers, {seeks} seeks, {growths} growths, {trims} trims, {store_falls} falls of the store"
        )
    }
}
