//! The cost of a failing endpoint: a subscription beside another one of the same topic whose endpoint hangs, and four keys beside a fifth
//! that fails. Each alternates with the same without the disturbance.

use super::{CountedKeys, DeliverBench, FILL_MESSAGES_MIN, bare_loop};
use crate::BenchError;

const KEYS_HANG: usize = 1000;
/// Keys in the round with a failing one.
const KEYS_BAD: usize = 5;
const GOAL: f64 = 0.9;
const HANG_TIMEOUT: &str = "2s";

impl DeliverBench {
    pub(super) fn run_hang(&mut self) -> Result<(), BenchError> {
        let topic = self.make_topic("hang")?;
        self.fill_for_turns(&topic, KEYS_HANG)?;
        let good = self.subscribe("good", &self.settings(&topic, "/good", "key"))?;
        self.pause(&good)?;
        let mut settings = self.settings(&topic, "/hang", "key");
        if let Some(endpoint) = &mut settings.endpoint {
            endpoint.timeout = Some(HANG_TIMEOUT.into());
        }
        let hung = self.subscribe("hung", &settings)?;
        self.pause(&hung)?;
        let turns = self.turns();
        let each = self.stage.measure_for / turns;
        let mut totals = (0.0, 0.0);
        for _ in 0..turns {
            self.stage.say("deliveries alone");
            self.resume(&good)?;
            totals.0 += self.delivered_per_second("/good", each, CountedKeys::All)? / f64::from(turns);
            self.stage.say("deliveries beside an endpoint that hangs");
            self.resume(&hung)?;
            totals.1 += self.delivered_per_second("/good", each, CountedKeys::All)? / f64::from(turns);
            self.pause(&hung)?;
            self.pause(&good)?;
        }
        self.unsubscribe(&hung)?;
        self.unsubscribe(&good)?;
        self.stage.report.plain_rate("deliver alone", totals.0);
        self.stage.report.share("deliver beside an endpoint that hangs", totals.1, ("alone", totals.0), GOAL);
        Ok(())
    }

    pub(super) fn run_badkey(&mut self) -> Result<(), BenchError> {
        let topic = self.make_topic("badkey")?;
        self.fill_for_turns(&topic, KEYS_BAD)?;
        let sound = self.subscribe("five", &self.settings(&topic, "/five", "key"))?;
        self.pause(&sound)?;
        let failing = self.subscribe("bad", &self.settings(&topic, "/bad", "key"))?;
        self.pause(&failing)?;
        let turns = self.turns();
        let each = self.stage.measure_for / turns;
        let mut totals = (0.0, 0.0);
        for _ in 0..turns {
            self.stage.say("five keys");
            self.resume(&sound)?;
            totals.0 += self.delivered_per_second("/five", each, CountedKeys::OtherKeys)? / f64::from(turns);
            self.pause(&sound)?;
            self.stage.say("five keys of which one fails");
            self.resume(&failing)?;
            totals.1 += self.delivered_per_second("/bad", each, CountedKeys::OtherKeys)? / f64::from(turns);
            self.pause(&failing)?;
        }
        let failures = self.sink.figures("/bad")?.failed;
        self.unsubscribe(&failing)?;
        self.unsubscribe(&sound)?;
        let report = &mut self.stage.report;
        report.plain_rate("four keys of five that are well", totals.0);
        report.share("four keys while the fifth fails", totals.1, ("all well", totals.0), GOAL);
        if failures == 0 {
            report.remark("four keys while the fifth fails: THE FIFTH DID NOT FAIL");
        }
        Ok(())
    }

    /// A backlog for all turns of a subscription that is as fast as the bare loop.
    fn fill_for_turns(&mut self, topic: &str, keys: usize) -> Result<(), BenchError> {
        self.stage.say("the bare loop");
        let bare = bare_loop::calls_per_second(self.sink.address, self.stage.measure_for / 4)?;
        let messages = bare * self.stage.measure_for.as_secs_f64() * 4.0;
        self.fill(topic, (messages as u64).max(FILL_MESSAGES_MIN), keys)?;
        Ok(())
    }
}
