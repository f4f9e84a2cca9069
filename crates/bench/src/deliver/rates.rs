//! The delivery rate of a backlog, without order and in the order of a thousand keys, alternating with the bare loop.

use super::{CountedKeys, DeliverBench, FILL_MESSAGES_MIN, bare_loop};
use crate::{BenchError, DeliverRound};

/// Keys of the ordered round, and of the topic that both rounds read.
const KEYS: usize = 1000;
const NONE_GOAL: f64 = 0.5;
const KEY_GOAL: f64 = 0.4;

impl DeliverBench {
    pub(super) fn run_rates(&mut self) -> Result<(), BenchError> {
        let topic = self.make_topic("rates")?;
        self.stage.say("the bare loop");
        let bare = bare_loop::calls_per_second(self.sink.address, self.stage.measure_for / 2)?;
        // Enough for all turns of a subscription that is as fast as the bare loop.
        let messages = bare * self.stage.measure_for.as_secs_f64() * 3.0;
        self.fill(&topic, (messages as u64).max(FILL_MESSAGES_MIN), KEYS)?;
        let rounds = [
            (DeliverRound::None, "none", "deliver, ordering none".to_owned(), NONE_GOAL),
            (DeliverRound::Key, "key", format!("deliver, ordering key, {KEYS} keys"), KEY_GOAL),
        ];
        for (round, ordering, name, goal) in rounds {
            if self.runs(round) {
                self.run_rate(&topic, ordering, &name, goal)?;
            }
        }
        Ok(())
    }

    fn run_rate(&mut self, topic: &str, ordering: &str, name: &str, goal: f64) -> Result<(), BenchError> {
        let path = format!("/{ordering}");
        let turns = self.turns();
        let each = self.stage.measure_for / turns;
        let mut totals = (0.0, 0.0);
        let mut subscription: Option<String> = None;
        for _ in 0..turns {
            self.stage.say("the bare loop");
            totals.0 += bare_loop::calls_per_second(self.sink.address, each)? / f64::from(turns);
            match &subscription {
                Some(name) => self.resume(name)?,
                None => {
                    let settings = self.settings(topic, &path, ordering);
                    subscription = Some(self.subscribe(ordering, &settings)?);
                }
            }
            self.stage.say(name.to_owned());
            totals.1 += self.delivered_per_second(&path, each, CountedKeys::All)? / f64::from(turns);
            if let Some(name) = &subscription {
                self.pause(name)?;
            }
        }
        if let Some(name) = subscription {
            self.unsubscribe(&name)?;
        }
        self.stage.report.plain_rate(&format!("bare client loop beside {ordering}"), totals.0);
        self.stage.report.share(name, totals.1, ("the bare loop", totals.0), goal);
        Ok(())
    }
}
