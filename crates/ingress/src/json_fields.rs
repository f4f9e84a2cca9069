//! JSON bodies, read field by field, so that an error names the field and a valid value.
//!
//! Each field is taken once. [`JsonFields::end`] rejects fields that were not taken, and suggests a similar known name. `null` counts as
//! absent, except for [`JsonFields::take_or_null`].

use std::ops::RangeInclusive;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value};
use whimbrel_model::{Timestamp, format_duration, parse_duration};

use crate::problem::{ApiProblem, Code};
use crate::query::shown;

/// The similarity above which an unknown name is taken for a misspelled known one.
const NEAR_ENOUGH: f64 = 0.7;

pub(super) struct JsonFields {
    map: Map<String, Value>,
    /// The prefix of the field names in errors, such as `endpoint.`.
    below: String,
    asked: Vec<&'static str>,
}

impl JsonFields {
    /// The object that is a whole body. An empty body is an empty object.
    pub(super) fn of_body(body: &[u8]) -> Result<Self, ApiProblem> {
        if body.trim_ascii().is_empty() {
            return Ok(Self { map: Map::new(), below: String::new(), asked: Vec::new() });
        }
        match serde_json::from_slice(body) {
            Ok(Value::Object(map)) => Ok(Self { map, below: String::new(), asked: Vec::new() }),
            Ok(_) => Err(ApiProblem::new(Code::BadJson, "the body must be a JSON object")),
            Err(error) => Err(ApiProblem::new(Code::BadJson, error.to_string())),
        }
    }

    /// The fields of an object that is nested in a body under `name`.
    pub(super) fn below_body(name: &str, map: Map<String, Value>) -> Self {
        Self { map, below: format!("{name}."), asked: Vec::new() }
    }

    /// A problem about one field: `what` follows its name.
    pub(super) fn wrong(&self, name: &str, what: impl std::fmt::Display) -> ApiProblem {
        self.wrong_as(Code::BadParameter, name, what)
    }

    pub(super) fn wrong_as(&self, code: Code, name: &str, what: impl std::fmt::Display) -> ApiProblem {
        let name = format!("{}{name}", self.below);
        ApiProblem::new(code, format!("`{name}` {what}")).with("field", name)
    }

    /// A problem about one field that another error describes.
    fn wrong_because(&self, code: Code, name: &str, error: impl std::fmt::Display) -> ApiProblem {
        let name = format!("{}{name}", self.below);
        ApiProblem::new(code, format!("`{name}`: {error}")).with("field", name)
    }

    /// Removes a field and returns it. A present `null` is `Some(Null)`.
    pub(super) fn take_or_null(&mut self, name: &'static str) -> Option<Value> {
        self.asked.push(name);
        self.map.remove(name)
    }

    pub(super) fn take(&mut self, name: &'static str) -> Option<Value> {
        self.take_or_null(name).filter(|value| !value.is_null())
    }

    pub(super) fn text(&mut self, name: &'static str) -> Result<Option<String>, ApiProblem> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.wrong(name, "must be a string")),
        }
    }

    pub(super) fn flag(&mut self, name: &'static str) -> Result<Option<bool>, ApiProblem> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(flag)),
            Some(_) => Err(self.wrong(name, "must be true or false")),
        }
    }

    pub(super) fn number(&mut self, name: &'static str, range: RangeInclusive<u64>) -> Result<Option<u64>, ApiProblem> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let number = value.as_u64().filter(|number| range.contains(number));
        let bad = || self.wrong(name, format_args!("must be a whole number from {} to {}", range.start(), range.end()));
        number.map(Some).ok_or_else(bad)
    }

    pub(super) fn duration(
        &mut self,
        name: &'static str,
        range: RangeInclusive<Duration>,
    ) -> Result<Option<Duration>, ApiProblem> {
        let value = self.take(name);
        value.map(|value| self.duration_of(name, &value, &range)).transpose()
    }

    /// The value of another field as a duration.
    pub(super) fn duration_of(
        &self,
        name: &str,
        value: &Value,
        range: &RangeInclusive<Duration>,
    ) -> Result<Duration, ApiProblem> {
        let duration = match value {
            Value::String(text) => {
                parse_duration(text).map_err(|error| self.wrong_because(Code::BadDuration, name, error))
            }
            Value::Number(millis) => millis.as_u64().map(Duration::from_millis).ok_or_else(|| {
                self.wrong_as(Code::BadDuration, name, "must be a duration such as 3s, or whole milliseconds")
            }),
            _ => Err(self.wrong_as(Code::BadDuration, name, "must be a duration such as 3s, or whole milliseconds")),
        }?;
        if range.contains(&duration) {
            return Ok(duration);
        }
        let (from, to) = (format_duration(*range.start()), format_duration(*range.end()));
        let got = format_duration(duration);
        Err(self.wrong_as(Code::BadDuration, name, format_args!("must be from {from} to {to}, got {got}")))
    }

    /// A string that must be the word of one of these values.
    pub(super) fn word<T>(&mut self, name: &'static str, values: &[T]) -> Result<Option<T>, ApiProblem>
    where
        T: Copy + Serialize,
    {
        let Some(value) = self.take(name) else { return Ok(None) };
        let found = values.iter().find(|known| value.as_str() == Some(&word_of(known)));
        found.map(|known| Some(*known)).ok_or_else(|| {
            let known: Vec<String> = values.iter().map(|known| format!("`{}`", word_of(known))).collect();
            self.wrong(name, format_args!("must be {}", known.join(" or ")))
        })
    }

    pub(super) fn list(&mut self, name: &'static str, most: usize) -> Result<Option<Vec<Value>>, ApiProblem> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Array(values)) if values.len() <= most => Ok(Some(values)),
            Some(Value::Array(values)) => {
                Err(self.wrong(name, format_args!("has {} entries; the limit is {most}", values.len())))
            }
            Some(_) => Err(self.wrong(name, "must be an array")),
        }
    }

    pub(super) fn texts(&mut self, name: &'static str, most: usize) -> Result<Option<Vec<String>>, ApiProblem> {
        let Some(values) = self.list(name, most)? else { return Ok(None) };
        let text = |value| match value {
            Value::String(text) => Ok(text),
            _ => Err(self.wrong(name, "must be an array of strings")),
        };
        values.into_iter().map(text).collect::<Result<_, _>>().map(Some)
    }

    pub(super) fn object(&mut self, name: &'static str) -> Result<Option<Map<String, Value>>, ApiProblem> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(map)),
            Some(_) => Err(self.wrong(name, "must be an object")),
        }
    }

    /// The fields of a nested object.
    pub(super) fn below(&mut self, name: &'static str) -> Result<Option<Self>, ApiProblem> {
        let below = format!("{}{name}.", self.below);
        Ok(self.object(name)?.map(|map| Self { map, below, asked: Vec::new() }))
    }

    /// Rejects the fields that were not taken.
    pub(super) fn end(self) -> Result<(), ApiProblem> {
        let Some(name) = self.map.keys().next() else { return Ok(()) };
        let near = self.asked.iter().map(|known| (strsim::jaro_winkler(name, known), *known));
        let near = near.filter(|(alike, _)| *alike >= NEAR_ENOUGH).max_by(|a, b| a.0.total_cmp(&b.0));
        let hint = near.map_or(String::new(), |(_, known)| format!("; did you mean `{}{known}`?", self.below));
        let detail = format!("unknown field `{}{}`{hint}", self.below, shown(name));
        Err(ApiProblem::new(Code::BadParameter, detail).with("field", format!("{}{}", self.below, shown(name))))
    }
}

/// The text of a field as a time.
pub(super) fn time_of(fields: &JsonFields, name: &str, text: &str) -> Result<Timestamp, ApiProblem> {
    Timestamp::parse(text).map_err(|error| fields.wrong_because(Code::BadTime, name, error))
}

/// The word of an enum value in the catalogue and in bodies.
pub(super) fn word_of(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(json: &str) -> JsonFields {
        JsonFields::of_body(json.as_bytes()).unwrap()
    }

    #[test]
    fn the_text_of_another_error_follows_the_field_name_and_a_colon() {
        let of = fields("{}");
        let time = time_of(&of, "to", "yesterday").unwrap_err();
        assert!(time.detail().starts_with("`to`: `yesterday` is not a time"), "{}", time.detail());
        let duration = of.duration_of("lease", &"soon".into(), &(Duration::ZERO..=Duration::MAX)).unwrap_err();
        assert!(duration.detail().starts_with("`lease`: "), "{}", duration.detail());
    }

    #[test]
    fn an_unknown_field_suggests_the_similar_known_one() {
        let mut of = fields(r#"{"conurrency":3}"#);
        of.number("concurrency", 1..=9).unwrap();
        of.text("mode").unwrap();
        let problem = of.end().unwrap_err();
        assert_eq!(problem.member("field").unwrap(), "conurrency");
        assert!(problem.detail().contains("`concurrency`"), "{}", problem.detail());
    }

    #[test]
    fn errors_name_nested_fields_with_their_path() {
        let mut of = fields(r#"{"endpoint":{"timeout":"soon","timeuot":1}}"#);
        let mut endpoint = of.below("endpoint").unwrap().unwrap();
        let range = Duration::from_secs(1)..=Duration::from_secs(2);
        assert_eq!(endpoint.duration("timeout", range).unwrap_err().member("field").unwrap(), "endpoint.timeout");
        assert_eq!(endpoint.end().unwrap_err().member("field").unwrap(), "endpoint.timeuot");
    }

    #[test]
    fn null_counts_as_absent_unless_take_given_is_used() {
        let mut of = fields(r#"{"a":null,"b":null}"#);
        assert_eq!(of.text("a").unwrap(), None);
        assert_eq!(of.take_or_null("b"), Some(Value::Null));
        assert!(of.end().is_ok());
    }

    #[test]
    fn errors_state_the_bounds() {
        let mut of = fields(r#"{"a":11,"b":-1,"c":"3h","d":["x"]}"#);
        assert!(of.number("a", 1..=10).unwrap_err().detail().contains("from 1 to 10"));
        assert!(of.number("b", 1..=10).is_err());
        let hour = Duration::ZERO..=Duration::from_secs(3600);
        assert!(of.duration("c", hour).unwrap_err().detail().contains("1h"));
        assert!(of.texts("d", 0).is_err());
    }
}
