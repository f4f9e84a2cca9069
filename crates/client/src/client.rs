//! The client: one HTTP request per call, typed responses, a timeout for each.

use std::fmt::Write as _;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::Serialize;
use serde::de::DeserializeOwned;
use whimbrel_api::messages::{Accepted, BatchAnswer, BatchEntry, MessageState, ReadPage};
use whimbrel_api::problem::Problem;
use whimbrel_api::topics::{TopicInfo, TopicList, TopicSettings};

use crate::{ClientError, NewMessage, Position, Tail};

/// The default timeout of a response, in addition to the wait that the request asks for.
const ANSWER_WAIT_DEFAULT: Duration = Duration::from_secs(30);
/// The connect timeout.
const CONNECT_WAIT: Duration = Duration::from_secs(5);
/// Characters of an unexpected response in an error.
const SHOWN_CHARS: usize = 200;

/// A client of one server. Clones share their connections.
#[derive(Debug, Clone)]
pub struct Client {
    http: HttpClient<HttpConnector, Full<Bytes>>,
    /// `http://host:port` and a path, without a slash at the end.
    base: String,
    authorization: Option<HeaderValue>,
    answer_wait: Duration,
}

/// A range of messages to read.
#[derive(Debug, Clone, Default)]
pub struct ReadFrom {
    pub partition: u32,
    pub position: Position,
    /// The maximum number of messages. `None`: the server's default.
    pub limit: Option<usize>,
    /// How long to wait for new messages at the end of the partition.
    pub wait: Option<Duration>,
}

/// The start of a tail.
#[derive(Debug, Clone, Default)]
pub struct TailFrom {
    /// `None`: all partitions.
    pub partition: Option<u32>,
    /// `None`: only new messages.
    pub position: Option<Position>,
    /// Resume after this [`Tail::last_event_id`].
    pub last_event_id: Option<String>,
}

impl Client {
    /// Creates a client of the server at `url`, such as `http://127.0.0.1:7600`. It connects with the first request.
    pub fn new(url: &str) -> Result<Self, ClientError> {
        let bad = |why| ClientError::BadUrl { url: url.to_owned(), why };
        let uri: http::Uri = url.trim_end_matches('/').parse().map_err(|_| bad("write http://host:port"))?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => return Err(bad("https is not supported; use http, or a proxy that terminates TLS")),
            _ => return Err(bad("write http://host:port")),
        }
        if uri.host().is_none_or(str::is_empty) || uri.query().is_some() {
            return Err(bad("write http://host:port"));
        }
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(CONNECT_WAIT));
        Ok(Self {
            http: HttpClient::builder(TokioExecutor::new()).build(connector),
            base: uri.to_string().trim_end_matches('/').to_owned(),
            authorization: None,
            answer_wait: ANSWER_WAIT_DEFAULT,
        })
    }

    /// Sends this API key with every request.
    pub fn with_api_key(mut self, key: &str) -> Result<Self, ClientError> {
        let mut value = HeaderValue::try_from(format!("Bearer {key}"))
            .map_err(|_| ClientError::BadRequest("the API key has characters that are invalid in a header".into()))?;
        value.set_sensitive(true);
        self.authorization = Some(value);
        Ok(self)
    }

    /// Sets the timeout of a response, in addition to the wait that the request asks for. Default: 30 s.
    pub fn with_answer_wait(mut self, wait: Duration) -> Self {
        self.answer_wait = wait;
        self
    }

    /// The server's address.
    pub fn server(&self) -> &str {
        &self.base
    }

    /// Publishes one message, with its payload unchanged. The message is durable when this returns.
    pub async fn publish(&self, topic: &str, message: &NewMessage) -> Result<Accepted, ClientError> {
        let mut request = self.request(Method::POST, &format!("/v1/topics/{}/messages", escaped(topic)));
        let attributes = [
            ("content-type", &message.content_type),
            ("whimbrel-key", &message.key),
            ("whimbrel-id", &message.id),
            ("whimbrel-delay", &message.delay),
            ("whimbrel-deliver-at", &message.deliver_at),
            ("idempotency-key", &message.idempotency_key),
        ];
        for (name, value) in attributes {
            if let Some(value) = value {
                request = request.header(name, header_value(name, value)?);
            }
        }
        for (name, value) in &message.headers {
            // CloudEvents attributes keep their names; all other headers get the prefix.
            let sent_as = if name.to_ascii_lowercase().starts_with("ce-") {
                name.clone()
            } else {
                format!("whimbrel-header-{name}")
            };
            let sent_as = HeaderName::try_from(&sent_as)
                .map_err(|_| ClientError::BadRequest(format!("`{name}` is not a valid header name")))?;
            let value = header_value(name, value)?;
            request = request.header(sent_as, value);
        }
        self.answer(request, message.payload.clone(), self.answer_wait).await
    }

    /// Publishes many messages in one request. Either all are accepted, with one result each in order, or none is. Exception: the problem
    /// `partly_appended`, which contains the result of each message.
    pub async fn publish_batch<'a>(
        &self,
        topic: &str,
        messages: impl IntoIterator<Item = &'a NewMessage>,
    ) -> Result<Vec<Accepted>, ClientError> {
        let mut lines = Vec::new();
        for message in messages {
            serde_json::to_writer(&mut lines, &BatchEntry::from(message))
                .map_err(|error| ClientError::BadRequest(error.to_string()))?;
            lines.push(b'\n');
        }
        self.publish_ndjson(topic, lines.into()).await
    }

    /// Like [`Self::publish_batch`], with entries that are lines of JSON.
    pub async fn publish_ndjson(&self, topic: &str, lines: Bytes) -> Result<Vec<Accepted>, ClientError> {
        let request = self
            .request(Method::POST, &format!("/v1/topics/{}/batch", escaped(topic)))
            .header(header::CONTENT_TYPE, "application/x-ndjson");
        let answers: BatchAnswer = self.answer(request, lines, self.answer_wait).await?;
        Ok(answers.messages)
    }

    /// Reads from one partition.
    pub async fn read(&self, topic: &str, from: &ReadFrom) -> Result<ReadPage, ClientError> {
        let path = with_query(
            &format!("/v1/topics/{}/messages", escaped(topic)),
            &[
                ("partition", Some(from.partition.to_string())),
                from.position.parameter(),
                ("limit", from.limit.map(|limit| limit.to_string())),
                ("wait", from.wait.map(|wait| format!("{}ms", wait.as_millis()))),
            ],
        );
        let wait = self.answer_wait + from.wait.unwrap_or_default();
        self.answer(self.request(Method::GET, &path), Bytes::new(), wait).await
    }

    /// Follows a topic.
    pub async fn tail(&self, topic: &str, from: &TailFrom) -> Result<Tail, ClientError> {
        let position = from.position.as_ref().map_or(("offset", None), Position::parameter);
        let partition = ("partition", from.partition.map(|partition| partition.to_string()));
        let path = with_query(&format!("/v1/topics/{}/tail", escaped(topic)), &[partition, position]);
        let mut request = self.request(Method::GET, &path).header(header::ACCEPT, "text/event-stream");
        if let Some(id) = &from.last_event_id {
            request = request.header("last-event-id", header_value("last-event-id", id)?);
        }
        let (_, body) = self.send(request, Bytes::new(), self.answer_wait).await?;
        Ok(Tail::new(self.base.clone(), body))
    }

    /// Finds a message by its id.
    pub async fn message(&self, id: &str) -> Result<MessageState, ClientError> {
        self.get(&format!("/v1/messages/{}", escaped(id))).await
    }

    pub async fn topics(&self) -> Result<Vec<TopicInfo>, ClientError> {
        Ok(self.get::<TopicList>("/v1/topics").await?.topics)
    }

    pub async fn topic(&self, topic: &str) -> Result<TopicInfo, ClientError> {
        self.get(&format!("/v1/topics/{}", escaped(topic))).await
    }

    /// Creates the topic, or changes the given `settings`.
    pub async fn put_topic(&self, topic: &str, settings: &TopicSettings) -> Result<TopicInfo, ClientError> {
        self.send_json(Method::PUT, &format!("/v1/topics/{}", escaped(topic)), settings).await
    }

    /// Deletes the topic and all its messages. Fails if the topic has pending holds.
    pub async fn delete_topic(&self, topic: &str) -> Result<(), ClientError> {
        self.delete(&format!("/v1/topics/{}", escaped(topic))).await
    }

    /// Withdraws the pending holds of the topic, then deletes it and all its messages.
    pub async fn delete_topic_and_holds(&self, topic: &str) -> Result<(), ClientError> {
        self.delete(&format!("/v1/topics/{}?holds=withdraw", escaped(topic))).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Result<(), ClientError> {
        self.send(self.request(Method::DELETE, path), Bytes::new(), self.answer_wait).await.map(drop)
    }

    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.answer(self.request(Method::GET, path), Bytes::new(), self.answer_wait).await
    }

    pub(crate) async fn send_json<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        self.answer_json(self.request(method, path), body, self.answer_wait).await
    }

    pub(crate) async fn answer_json<T: DeserializeOwned>(
        &self,
        request: http::request::Builder,
        body: &impl Serialize,
        wait: Duration,
    ) -> Result<T, ClientError> {
        let body = serde_json::to_vec(body).map_err(|error| ClientError::BadRequest(error.to_string()))?;
        self.answer(request.header(header::CONTENT_TYPE, "application/json"), body.into(), wait).await
    }

    pub(crate) fn answer_wait(&self) -> Duration {
        self.answer_wait
    }

    pub(crate) fn request(&self, method: Method, path: &str) -> http::request::Builder {
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.base));
        if let Some(authorization) = &self.authorization {
            request = request.header(header::AUTHORIZATION, authorization.clone());
        }
        request
    }

    pub(crate) async fn answer<T: DeserializeOwned>(
        &self,
        request: http::request::Builder,
        body: Bytes,
        wait: Duration,
    ) -> Result<T, ClientError> {
        let (status, body) = self.send(request, body, wait).await?;
        let bytes = self.collect(body, wait).await?;
        serde_json::from_slice(&bytes).map_err(|_| self.unexpected(status, &bytes))
    }

    /// Sends a request. A response without a status of success is an error.
    async fn send(
        &self,
        request: http::request::Builder,
        body: Bytes,
        wait: Duration,
    ) -> Result<(StatusCode, Incoming), ClientError> {
        let request = request.body(Full::new(body)).map_err(|error| ClientError::BadRequest(error.to_string()))?;
        let response = tokio::time::timeout(wait, self.http.request(request))
            .await
            .map_err(|_| self.timeout(wait))?
            .map_err(|error| {
                if error.is_connect() {
                    ClientError::Unreachable { server: self.base.clone(), why: why(&error) }
                } else {
                    ClientError::Broken { server: self.base.clone(), why: why(&error) }
                }
            })?;
        let (status, body) = (response.status(), response.into_body());
        if status.is_success() {
            return Ok((status, body));
        }
        let bytes = self.collect(body, wait).await?;
        match serde_json::from_slice::<Problem>(&bytes) {
            Ok(problem) if !problem.code.is_empty() => Err(ClientError::Problem(Box::new(problem))),
            _ => Err(self.unexpected(status, &bytes)),
        }
    }

    async fn collect(&self, body: Incoming, wait: Duration) -> Result<Bytes, ClientError> {
        let collected = tokio::time::timeout(wait, body.collect()).await.map_err(|_| self.timeout(wait))?;
        let broken = |error| ClientError::Broken { server: self.base.clone(), why: why(&error) };
        Ok(collected.map_err(broken)?.to_bytes())
    }

    fn unexpected(&self, status: StatusCode, body: &[u8]) -> ClientError {
        let shown = String::from_utf8_lossy(body).chars().take(SHOWN_CHARS).collect();
        ClientError::Unexpected { server: self.base.clone(), status: status.as_u16(), shown }
    }

    fn timeout(&self, wait: Duration) -> ClientError {
        ClientError::Timeout { server: self.base.clone(), waited_ms: wait.as_millis() }
    }
}

/// The innermost cause, which is the most specific.
pub(crate) fn why(error: &dyn std::error::Error) -> String {
    let mut innermost: &dyn std::error::Error = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

pub(crate) fn header_value(name: &str, value: &str) -> Result<HeaderValue, ClientError> {
    HeaderValue::try_from(value).map_err(|_| {
        ClientError::BadRequest(format!("the value of `{name}` has characters that are invalid in a header"))
    })
}

/// The path with the parameters that have a value.
pub(crate) fn with_query(path: &str, parameters: &[(&str, Option<String>)]) -> String {
    let mut whole = path.to_owned();
    let mut before = '?';
    for (name, value) in parameters {
        if let Some(value) = value {
            let _ = write!(whole, "{before}{name}={}", escaped(value));
            before = '&';
        }
    }
    whole
}

/// Percent-encodes a path segment or query value, except unreserved characters.
pub(crate) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => escaped.push(byte.into()),
            _ => {
                let _ = write!(escaped, "%{byte:02X}");
            }
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_validated_before_anything_is_sent() {
        for good in ["http://127.0.0.1:7600", "http://whimbrel.example/", "http://[::1]:7600/behind/a/proxy"] {
            assert!(Client::new(good).is_ok(), "{good}");
        }
        for bad in ["", "127.0.0.1:7600", "https://127.0.0.1", "ftp://x", "http://", "http://a b", "http://a/?q=1"] {
            assert!(matches!(Client::new(bad), Err(ClientError::BadUrl { .. })), "{bad}");
        }
    }

    #[test]
    fn a_query_contains_only_the_given_parameters() {
        assert_eq!(with_query("/v1/holds", &[("topic", None)]), "/v1/holds");
        let parameters = [("topic", Some("a&b".into())), ("to", None), ("since", Some("2026-01-31T09:30:00Z".into()))];
        assert_eq!(with_query("/x", &parameters), "/x?topic=a%26b&since=2026-01-31T09%3A30%3A00Z");
    }

    #[test]
    fn names_are_escaped_in_a_path() {
        assert_eq!(escaped("orders.eu-1_x"), "orders.eu-1_x");
        assert_eq!(escaped("a/b?c=d%#é"), "a%2Fb%3Fc%3Dd%25%23%C3%A9");
    }
}
