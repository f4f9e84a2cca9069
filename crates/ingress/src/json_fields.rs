//! Bodies of JSON, read field by field, so that a mistake is told with the field's name and with what to write instead.
//!
//! Each field is asked for once; [`Fields::end`] refuses what nobody asked for, and names the field that was meant. `null` is as good as
//! left out, unless [`Fields::take_given`] asks.

use std::ops::RangeInclusive;
use std::time::Duration;

use serde_json::{Map, Value};
use whimbrel_model::{Timestamp, format_duration, parse_duration};

use super::problem::{Code, Problem};
use super::query::shown;

/// How alike two names must be for one to be taken for the other.
const NEAR_ENOUGH: f64 = 0.7;

pub(super) struct Fields {
    map: Map<String, Value>,
    /// What the names stand below, such as `endpoint.`.
    below: String,
    asked: Vec<&'static str>,
}

impl Fields {
    /// The object that a whole body is; an empty body is an empty object.
    pub(super) fn of_body(body: &[u8]) -> Result<Self, Problem> {
        if body.trim_ascii().is_empty() {
            return Ok(Self { map: Map::new(), below: String::new(), asked: Vec::new() });
        }
        match serde_json::from_slice(body) {
            Ok(Value::Object(map)) => Ok(Self { map, below: String::new(), asked: Vec::new() }),
            Ok(_) => Err(Problem::new(Code::BadJson, "the body is a JSON object")),
            Err(error) => Err(Problem::new(Code::BadJson, error.to_string())),
        }
    }

    /// The fields of an object that stands in a body under a name.
    pub(super) fn below_body(name: &str, map: Map<String, Value>) -> Self {
        Self { map, below: format!("{name}."), asked: Vec::new() }
    }

    /// A problem with one field.
    pub(super) fn wrong(&self, name: &str, what: impl std::fmt::Display) -> Problem {
        self.wrong_as(Code::BadParameter, name, what)
    }

    pub(super) fn wrong_as(&self, code: Code, name: &str, what: impl std::fmt::Display) -> Problem {
        let name = format!("{}{name}", self.below);
        Problem::new(code, format!("`{name}` {what}")).with("field", name)
    }

    /// A problem with one field that another error describes.
    fn wrong_because(&self, code: Code, name: &str, error: impl std::fmt::Display) -> Problem {
        let name = format!("{}{name}", self.below);
        Problem::new(code, format!("`{name}`: {error}")).with("field", name)
    }

    /// Takes a field out; `Some(Null)` where it is there and `null`.
    pub(super) fn take_given(&mut self, name: &'static str) -> Option<Value> {
        self.asked.push(name);
        self.map.remove(name)
    }

    pub(super) fn take(&mut self, name: &'static str) -> Option<Value> {
        self.take_given(name).filter(|value| !value.is_null())
    }

    pub(super) fn text(&mut self, name: &'static str) -> Result<Option<String>, Problem> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.wrong(name, "is a text")),
        }
    }

    pub(super) fn flag(&mut self, name: &'static str) -> Result<Option<bool>, Problem> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(flag)),
            Some(_) => Err(self.wrong(name, "is true or false")),
        }
    }

    pub(super) fn number(&mut self, name: &'static str, range: RangeInclusive<u64>) -> Result<Option<u64>, Problem> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let number = value.as_u64().filter(|number| range.contains(number));
        let wrong = || self.wrong(name, format_args!("is a whole number from {} to {}", range.start(), range.end()));
        number.map(Some).ok_or_else(wrong)
    }

    pub(super) fn duration(
        &mut self,
        name: &'static str,
        range: RangeInclusive<Duration>,
    ) -> Result<Option<Duration>, Problem> {
        let value = self.take(name);
        value.map(|value| self.duration_of(name, &value, &range)).transpose()
    }

    /// A duration within another field's value.
    pub(super) fn duration_of(
        &self,
        name: &str,
        value: &Value,
        range: &RangeInclusive<Duration>,
    ) -> Result<Duration, Problem> {
        let duration = match value {
            Value::String(text) => {
                parse_duration(text).map_err(|error| self.wrong_because(Code::BadDuration, name, error))
            }
            Value::Number(millis) => millis.as_u64().map(Duration::from_millis).ok_or_else(|| {
                self.wrong_as(Code::BadDuration, name, "is a duration such as 3s, or whole milliseconds")
            }),
            _ => Err(self.wrong_as(Code::BadDuration, name, "is a duration such as 3s, or whole milliseconds")),
        }?;
        if range.contains(&duration) {
            return Ok(duration);
        }
        let (from, to) = (format_duration(*range.start()), format_duration(*range.end()));
        Err(self.wrong_as(Code::BadDuration, name, format_args!("is from {from} to {to}")))
    }

    /// One of a few words.
    pub(super) fn word<T: Copy>(&mut self, name: &'static str, words: &[(&str, T)]) -> Result<Option<T>, Problem> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let found = value.as_str().and_then(|text| words.iter().find(|(word, _)| *word == text));
        found.map(|(_, meaning)| Some(*meaning)).ok_or_else(|| {
            let known: Vec<String> = words.iter().map(|(word, _)| format!("`{word}`")).collect();
            self.wrong(name, format_args!("is {}", known.join(" or ")))
        })
    }

    pub(super) fn list(&mut self, name: &'static str, most: usize) -> Result<Option<Vec<Value>>, Problem> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Array(values)) if values.len() <= most => Ok(Some(values)),
            Some(Value::Array(values)) => {
                Err(self.wrong(name, format_args!("has {} entries: {most} at most", values.len())))
            }
            Some(_) => Err(self.wrong(name, "is a list")),
        }
    }

    pub(super) fn texts(&mut self, name: &'static str, most: usize) -> Result<Option<Vec<String>>, Problem> {
        let Some(values) = self.list(name, most)? else { return Ok(None) };
        let text = |value| match value {
            Value::String(text) => Ok(text),
            _ => Err(self.wrong(name, "is a list of texts")),
        };
        values.into_iter().map(text).collect::<Result<_, _>>().map(Some)
    }

    pub(super) fn object(&mut self, name: &'static str) -> Result<Option<Map<String, Value>>, Problem> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(map)),
            Some(_) => Err(self.wrong(name, "is an object")),
        }
    }

    /// The fields of an object below this one.
    pub(super) fn below(&mut self, name: &'static str) -> Result<Option<Self>, Problem> {
        let below = format!("{}{name}.", self.below);
        Ok(self.object(name)?.map(|map| Self { map, below, asked: Vec::new() }))
    }

    /// Refuses what nobody asked for.
    pub(super) fn end(self) -> Result<(), Problem> {
        let Some(name) = self.map.keys().next() else { return Ok(()) };
        let near = self.asked.iter().map(|known| (strsim::jaro_winkler(name, known), *known));
        let near = near.filter(|(alike, _)| *alike >= NEAR_ENOUGH).max_by(|a, b| a.0.total_cmp(&b.0));
        let hint = near.map_or(String::new(), |(_, known)| format!("; `{}{known}` is meant?", self.below));
        let detail = format!("there is no field `{}{}`{hint}", self.below, shown(name));
        Err(Problem::new(Code::BadParameter, detail).with("field", format!("{}{}", self.below, shown(name))))
    }
}

/// A time within a field.
pub(super) fn time_of(fields: &Fields, name: &str, text: &str) -> Result<Timestamp, Problem> {
    Timestamp::parse(text).map_err(|error| fields.wrong_because(Code::BadTime, name, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(json: &str) -> Fields {
        Fields::of_body(json.as_bytes()).unwrap()
    }

    #[test]
    fn what_another_error_describes_follows_the_name_behind_a_colon() {
        let of = fields("{}");
        let time = time_of(&of, "to", "yesterday").unwrap_err();
        assert!(time.detail().starts_with("`to`: `yesterday` is not a time"), "{}", time.detail());
        let duration = of.duration_of("lease", &"soon".into(), &(Duration::ZERO..=Duration::MAX)).unwrap_err();
        assert!(duration.detail().starts_with("`lease`: "), "{}", duration.detail());
    }

    #[test]
    fn a_mistyped_field_is_told_with_the_one_that_was_meant() {
        let mut of = fields(r#"{"conurrency":3}"#);
        of.number("concurrency", 1..=9).unwrap();
        of.text("mode").unwrap();
        let problem = of.end().unwrap_err();
        assert_eq!(problem.member("field").unwrap(), "conurrency");
        assert!(problem.detail().contains("`concurrency`"), "{}", problem.detail());
    }

    #[test]
    fn fields_are_named_from_the_top() {
        let mut of = fields(r#"{"endpoint":{"timeout":"soon","timeuot":1}}"#);
        let mut endpoint = of.below("endpoint").unwrap().unwrap();
        let range = Duration::from_secs(1)..=Duration::from_secs(2);
        assert_eq!(endpoint.duration("timeout", range).unwrap_err().member("field").unwrap(), "endpoint.timeout");
        assert_eq!(endpoint.end().unwrap_err().member("field").unwrap(), "endpoint.timeuot");
    }

    #[test]
    fn null_is_as_good_as_left_out_unless_it_is_asked_for() {
        let mut of = fields(r#"{"a":null,"b":null}"#);
        assert_eq!(of.text("a").unwrap(), None);
        assert_eq!(of.take_given("b"), Some(Value::Null));
        assert!(of.end().is_ok());
    }

    #[test]
    fn bounds_are_told() {
        let mut of = fields(r#"{"a":11,"b":-1,"c":"3h","d":["x"]}"#);
        assert!(of.number("a", 1..=10).unwrap_err().detail().contains("from 1 to 10"));
        assert!(of.number("b", 1..=10).is_err());
        let hour = Duration::ZERO..=Duration::from_secs(3600);
        assert!(of.duration("c", hour).unwrap_err().detail().contains("1h"));
        assert!(of.texts("d", 0).is_err());
    }
}
