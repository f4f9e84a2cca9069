//! The results of a benchmark: figures with their references, the goal of each, and whether it was met. A missed goal is not a failure:
//! a figure of one run on one machine is no proof.

use std::time::Duration;

use comfy_table::{ContentArrangement, Table, presets};
use serde_json::{Map, Value, json};

use super::device::Probe;
use super::load::LoadOutcome;

#[derive(Debug, Default)]
pub struct BenchReport {
    /// Lines above the table that apply to every figure.
    head: Vec<String>,
    rows: Vec<ReportRow>,
    remarks: Vec<String>,
}

#[derive(Debug)]
struct ReportRow {
    name: String,
    shown: String,
    goal: String,
    met: Option<bool>,
    figures: Map<String, Value>,
}

impl BenchReport {
    pub fn device(&mut self, probe: Probe) {
        let shown = format!("p50 {}, p99 {}", time(probe.p50), time(probe.p99));
        let figures = [("p50_us", micros(probe.p50)), ("p99_us", micros(probe.p99))];
        self.add("device: fdatasync of 4 KiB", shown, String::new(), None, figures);
    }

    pub fn rate(&mut self, name: &str, outcome: &LoadOutcome, messages: f64) {
        let figures = rate_figures(outcome, messages);
        self.add(name, shown_rate(outcome, messages), String::new(), None, figures);
        self.remark_refusals(name, outcome);
    }

    /// A rate with the goal of at least `goal` times another rate.
    pub fn ratio(&mut self, name: &str, outcome: &LoadOutcome, messages: f64, of: (&str, &LoadOutcome), goal: f64) {
        let ratio = outcome.per_second() / of.1.per_second().max(1e-9);
        let shown = format!("{}; {ratio:.2} of {}", shown_rate(outcome, messages), of.0);
        let figures = rate_figures(outcome, messages).into_iter().chain([("ratio", json!(ratio))]);
        self.add(name, shown, format!("at least {goal} of {}", of.0), Some(ratio >= goal), figures);
        self.remark_refusals(name, outcome);
    }

    /// A rate per second that was not counted by a load of the benchmark.
    pub fn plain_rate(&mut self, name: &str, per_second: f64) {
        self.figures(name, format!("{} /s", whole(per_second)), &[("per_second", per_second)]);
    }

    /// Like [`Self::ratio`], for a rate per second.
    pub fn share(&mut self, name: &str, per_second: f64, of: (&str, f64), goal: f64) {
        let ratio = per_second / of.1.max(1e-9);
        let shown = format!("{} /s; {ratio:.2} of {}", whole(per_second), of.0);
        let figures = [("per_second", json!(per_second)), ("ratio", json!(ratio))];
        self.add(name, shown, format!("at least {goal} of {}", of.0), Some(ratio >= goal), figures);
    }

    /// A rate with a goal of at least `goal` messages per second.
    pub fn rate_with_goal(&mut self, name: &str, outcome: &LoadOutcome, messages: f64, goal: f64) {
        let met = outcome.per_second() * messages >= goal;
        let figures = rate_figures(outcome, messages);
        self.add(name, shown_rate(outcome, messages), format!("at least {} /s", whole(goal)), Some(met), figures);
        self.remark_refusals(name, outcome);
    }

    /// A latency at a quantile with a goal of at most `goal`.
    pub fn latency(&mut self, name: &str, outcome: &LoadOutcome, quantile: f64, goal: Duration, because: &str) {
        let met = outcome.latency.quantile(quantile) <= goal && outcome.unanswered == 0;
        let goal = format!("p{} at most {} ({because})", quantile * 100.0, time(goal));
        self.add(name, shown_rate(outcome, 1.0), goal, Some(met), rate_figures(outcome, 1.0));
        self.remark_refusals(name, outcome);
    }

    /// A line that applies to every figure: the object of the measurement, and the meaning of an answer.
    pub fn head(&mut self, line: impl Into<String>) {
        self.head.push(line.into());
    }

    pub fn remark(&mut self, line: impl Into<String>) {
        self.remarks.push(line.into());
    }

    /// Times with a goal at each quantile; the last quantile may be 1, the maximum.
    pub fn lateness(
        &mut self,
        name: &str,
        count: u64,
        times: &[(f64, Duration)],
        goals: &[(f64, Duration)],
        because: &str,
    ) {
        let named = |share: f64| if share >= 1.0 { "max".to_owned() } else { format!("p{}", share * 100.0) };
        let key = |share: f64| if share >= 1.0 { "max_us".to_owned() } else { format!("p{}_us", share * 100.0) };
        let shown: Vec<_> = times.iter().map(|(share, found)| format!("{} {}", named(*share), time(*found))).collect();
        let goal: Vec<_> =
            goals.iter().map(|(share, most)| format!("{} at most {}", named(*share), time(*most))).collect();
        let because = if because.is_empty() || goals.is_empty() { String::new() } else { format!(" ({because})") };
        let is_met =
            |(share, most): &(f64, Duration)| times.iter().any(|(other, found)| other == share && found <= most);
        let met = (!goals.is_empty()).then(|| count > 0 && goals.iter().all(is_met));
        let keys: Vec<_> = times.iter().map(|(share, found)| (key(*share), micros(*found))).collect();
        let figures = keys.iter().map(|(key, value)| (key.as_str(), value.clone())).chain([("count", json!(count))]);
        let shown = format!("{} of {}", shown.join(", "), whole(count as f64));
        self.add(name, shown, format!("{}{because}", goal.join(", ")), met, figures);
    }

    pub fn figures(&mut self, name: &str, shown: String, figures: &[(&str, f64)]) {
        self.add(name, shown, String::new(), None, figures.iter().map(|(name, figure)| (*name, json!(figure))));
    }

    pub fn below(&mut self, name: &str, shown: String, goal: String, met: bool, figure: (&str, f64)) {
        self.add(name, shown, goal, Some(met), [(figure.0, json!(figure.1))]);
    }

    fn add<'a>(
        &mut self,
        name: &str,
        shown: String,
        goal: String,
        met: Option<bool>,
        figures: impl IntoIterator<Item = (&'a str, Value)>,
    ) {
        let figures = figures.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        self.rows.push(ReportRow { name: name.to_owned(), shown, goal, met, figures });
    }

    fn remark_refusals(&mut self, name: &str, outcome: &LoadOutcome) {
        if let Some(first) = &outcome.first_refusal {
            self.remarks.push(format!("{name}: {} rejected, the first with: {first}", outcome.refused));
        }
        if outcome.unanswered > 0 {
            self.remarks.push(format!("{name}: {} requests had no answer in time", outcome.unanswered));
        }
    }

    pub fn as_table(&self) -> String {
        let mut shown = Table::new();
        shown.load_preset(presets::UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Dynamic);
        shown.set_header(["measured", "figures", "goal", ""]);
        for row in &self.rows {
            shown.add_row([&row.name, &row.shown, &row.goal, verdict(row.met)]);
        }
        let remarks = self.remarks.iter().map(|remark| format!("\n{remark}")).collect::<String>();
        let head = self.head.iter().map(|line| format!("{line}\n")).collect::<String>();
        format!("{head}{shown}{remarks}")
    }

    pub fn as_json(&self) -> Value {
        let rows = self.rows.iter().map(|row| {
            json!({ "measured": row.name, "figures": row.figures, "goal": row.goal, "verdict": verdict(row.met) })
        });
        json!({ "head": self.head, "rows": rows.collect::<Vec<_>>(), "remarks": self.remarks })
    }
}

fn verdict(met: Option<bool>) -> &'static str {
    match met {
        Some(true) => "met",
        Some(false) => "missed",
        None => "",
    }
}

fn shown_rate(outcome: &LoadOutcome, messages: f64) -> String {
    let latency = &outcome.latency;
    format!(
        "{} /s, p50 {}, p99 {}",
        whole(outcome.per_second() * messages),
        time(latency.quantile(0.5)),
        time(latency.quantile(0.99))
    )
}

fn rate_figures(outcome: &LoadOutcome, messages: f64) -> Vec<(&'static str, Value)> {
    vec![
        ("per_second", json!(outcome.per_second() * messages)),
        ("p50_us", micros(outcome.latency.quantile(0.5))),
        ("p99_us", micros(outcome.latency.quantile(0.99))),
        ("refused", json!(outcome.refused)),
        ("unanswered", json!(outcome.unanswered)),
    ]
}

fn micros(duration: Duration) -> Value {
    json!(duration.as_nanos() as f64 / 1000.0)
}

pub fn time(duration: Duration) -> String {
    let micros = duration.as_nanos() as f64 / 1000.0;
    if micros < 1000.0 { format!("{micros:.0} µs") } else { format!("{:.2} ms", micros / 1000.0) }
}

/// A number in groups of three digits.
pub fn whole(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut grouped = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            grouped.push(' ');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_for_people() {
        assert_eq!([1.0, 999.0, 1000.0, 1_234_567.0].map(whole), ["1", "999", "1 000", "1 234 567"]);
    }
}
