//! Problems: the error answers of the API, in the format of RFC 9457.
//!
//! [`Code`] lists all problem codes with their status and title. HTTP, gRPC, the API document and the reference use this one list. `detail`
//! states what is wrong with the request. It must never contain information that only the operator may see. No code has the status 500: an
//! invalid request must never cause one.

use std::borrow::Cow;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, StatusCode};
use serde_json::{Map, Value};
use whimbrel_model::NameError;
use whimbrel_model::people::PeopleNameError;
use whimbrel_model::ports::{
    CatalogueError, DevicesError, DispatchError, HoldsError, LogError, PeopleError, PresenceError, ProgressError,
    ReceiptsError,
};

use whimbrel_catalogue::platforms::PlatformError;
use whimbrel_catalogue::subscriptions::SubscriptionError;
use whimbrel_catalogue::topics::TopicError;

macro_rules! codes {
    ($($variant:ident $status:literal $word:literal $title:literal,)+) => {
        /// A problem code.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Code { $(#[doc = $title] $variant,)+ }

        impl Code {
            /// All codes, ordered by status.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// The stable code that clients branch on.
            pub const fn word(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }

            pub const fn status(self) -> u16 {
                match self { $(Self::$variant => $status,)+ }
            }

            /// One line for readers, the same for every problem of this code.
            pub const fn title(self) -> &'static str {
                match self { $(Self::$variant => $title,)+ }
            }
        }
    };
}

codes! {
    BadBody 400 "bad_body" "The request body could not be read completely",
    BadRequest 400 "bad_request" "The request is not valid HTTP",
    KeyMissing 401 "key_missing" "An API key is required",
    KeyUnknown 401 "key_unknown" "The API key is unknown",
    Forbidden 403 "forbidden" "The API key does not allow this request",
    OriginNotAllowed 403 "origin_not_allowed" "This web origin is not allowed",
    UnknownPath 404 "unknown_path" "There is no such path",
    UnknownTopic 404 "unknown_topic" "There is no such topic",
    UnknownPartition 404 "unknown_partition" "The topic has no such partition",
    UnknownMessage 404 "unknown_message" "There is no such message",
    UnknownHold 404 "unknown_hold" "There is no such hold",
    UnknownSubscription 404 "unknown_subscription" "There is no such subscription",
    UnknownDevice 404 "unknown_device" "The user has no such device",
    UnknownWorker 404 "unknown_worker" "There is no such worker",
    MethodNotAllowed 405 "method_not_allowed" "The path does not support this method",
    BodyTooSlow 408 "body_too_slow" "The request body timed out",
    InProgress 409 "in_progress" "A publish under the same key is in progress",
    Conflict 409 "conflict" "Another request changed it at the same time",
    IdTaken 409 "id_taken" "Another hold has this id",
    AlreadyFired 409 "already_fired" "The hold has fired",
    AlreadyWithdrawn 409 "already_withdrawn" "The hold was withdrawn",
    AlreadyDead 409 "already_dead" "The hold failed: its message cannot be appended",
    HoldsPending 409 "holds_pending" "Holds of this topic are pending",
    TopicSubscribed 409 "topic_subscribed" "Subscriptions read this topic",
    SubscriptionDeleting 409 "subscription_deleting" "The subscription is being deleted",
    WrongMode 409 "wrong_mode" "The mode of the subscription does not support this",
    TooManyReplays 409 "too_many_replays" "The maximum number of replays is running",
    Damaged 410 "damaged" "The log is damaged at this offset",
    VersionDiffers 412 "version_differs" "The hold has another version",
    PayloadTooLarge 413 "payload_too_large" "The payload exceeds the limit",
    BatchTooLarge 413 "batch_too_large" "The batch exceeds a limit",
    OffsetOutOfRange 416 "offset_out_of_range" "The offset is outside the retained range",
    BadName 422 "bad_name" "The name is invalid",
    ReservedName 422 "reserved_name" "The name is reserved for the system",
    BadUid 422 "bad_uid" "The user id is invalid",
    BadPlatform 422 "bad_platform" "The platform name is invalid",
    BadDevice 422 "bad_device" "The device name is invalid",
    BadId 422 "bad_id" "The message id is invalid",
    BadKey 422 "bad_key" "The partition key is invalid",
    BadParameter 422 "bad_parameter" "A parameter is invalid",
    BadDuration 422 "bad_duration" "The duration is invalid",
    BadTime 422 "bad_time" "The time is invalid",
    BadHeader 422 "bad_header" "A message header is invalid",
    ReservedHeader 422 "reserved_header" "The message header is reserved",
    TooManyHeaders 422 "too_many_headers" "The message has too many headers",
    HeaderTooLarge 422 "header_too_large" "A message header exceeds the limit",
    BadJson 422 "bad_json" "The body is not the expected JSON",
    BadEntry 422 "bad_entry" "A batch entry is invalid",
    DifferentBody 422 "different_body" "The key or id was used with another message before",
    BadUrl 422 "bad_url" "The URL is invalid",
    ForbiddenAddress 422 "forbidden_address" "The destination address is not allowed",
    BadSecret 422 "bad_secret" "The secret is invalid",
    OffsetBeyondEnd 422 "offset_beyond_end" "The offset is beyond the end",
    CannotShrink 422 "cannot_shrink" "The number of partitions cannot decrease",
    Unsupported 422 "unsupported" "The engine does not support this",
    TooManyTopics 422 "too_many_topics" "The maximum number of topics exists",
    TooManySubscriptions 422 "too_many_subscriptions" "The maximum number of subscriptions exists",
    TooManyPlatforms 422 "too_many_platforms" "The maximum number of platforms is configured",
    TooManyDevices 422 "too_many_devices" "The user has the maximum number of devices",
    Overloaded 429 "overloaded" "The server is overloaded",
    TooManyRequestHeaders 431 "too_many_request_headers" "The request has too many headers",
    NotImplemented 501 "not_implemented" "This is not implemented yet",
    UnsupportedTransferCoding 501 "unsupported_transfer_coding" "The transfer coding is not supported",
    DiskFull 503 "disk_full" "The disk is full",
    LogClosed 503 "log_closed" "The log accepts no writes until a restart",
    Unavailable 503 "unavailable" "A required service is unavailable",
    NoOwner 503 "no_owner" "The shard has no owner at the moment",
    TopicGrowing 503 "topic_growing" "The topic is growing",
    NoSession 503 "no_session" "The node has no session with the coordination service",
    PartlyAppended 503 "partly_appended" "Only some of the messages were appended",
    PresenceStale 503 "presence_stale" "Presence is not known at the moment",
    NotReady 503 "not_ready" "The server is not ready",
    OutcomeUnknown 504 "outcome_unknown" "The outcome is unknown",
}

impl Code {
    /// Seconds until a retry makes sense: for each 429 and 503, and for other temporary conditions.
    pub const fn retry_after_s(self) -> Option<u32> {
        match self {
            Self::InProgress
            | Self::Overloaded
            | Self::NoOwner
            | Self::TopicGrowing
            | Self::NoSession
            | Self::PartlyAppended
            | Self::PresenceStale
            | Self::NotReady => Some(1),
            Self::Unavailable => Some(2),
            Self::DiskFull => Some(10),
            Self::LogClosed => Some(30),
            _ => None,
        }
    }
}

/// The outcome of an HTTP handler.
pub(crate) type ApiResult = Result<Response, ApiProblem>;

/// An error answer.
#[derive(Debug, Clone)]
pub struct ApiProblem(Box<ProblemContent>);

#[derive(Debug, Clone)]
struct ProblemContent {
    code: Code,
    detail: Cow<'static, str>,
    members: Map<String, Value>,
}

impl ApiProblem {
    pub fn new(code: Code, detail: impl Into<Cow<'static, str>>) -> Self {
        Self(Box::new(ProblemContent { code, detail: detail.into(), members: Map::new() }))
    }

    /// Adds a machine-readable member, such as the index of the invalid entry.
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.0.members.insert(name.to_owned(), value.into());
        self
    }

    pub fn code(&self) -> Code {
        self.0.code
    }

    pub fn detail(&self) -> &str {
        &self.0.detail
    }

    pub fn member(&self, name: &str) -> Option<&Value> {
        self.0.members.get(name)
    }

    pub fn to_json(&self) -> Value {
        let ProblemContent { code, detail, members } = &*self.0;
        let mut object = Map::new();
        object.insert("type".into(), format!("urn:whimbrel:problem:{}", code.word()).into());
        object.insert("title".into(), code.title().into());
        object.insert("status".into(), code.status().into());
        object.insert("detail".into(), detail.as_ref().into());
        object.insert("code".into(), code.word().into());
        object.extend(members.clone());
        Value::Object(object)
    }
}

impl IntoResponse for ApiProblem {
    fn into_response(self) -> Response {
        let code = self.code();
        metrics::counter!(crate::metric_names::REFUSALS, "code" => code.word()).increment(1);
        let mut response = Response::new(Body::from(self.to_json().to_string()));
        *response.status_mut() = StatusCode::from_u16(code.status()).expect("the list of codes has real statuses");
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(seconds) = code.retry_after_s() {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if code.status() == 401 {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl From<NameError> for ApiProblem {
    fn from(error: NameError) -> Self {
        let code = match error {
            NameError::Reserved => Code::ReservedName,
            NameError::BadId | NameError::SystemId => Code::BadId,
            _ => Code::BadName,
        };
        Self::new(code, error.to_string())
    }
}

impl From<LogError> for ApiProblem {
    fn from(error: LogError) -> Self {
        let detail = error.to_string();
        match error {
            LogError::UnknownPartition(_) => Self::new(Code::UnknownPartition, detail),
            LogError::TooLarge { limit, .. } => Self::new(Code::PayloadTooLarge, detail).with("limit", limit),
            LogError::Trimmed { first, .. } => Self::new(Code::OffsetOutOfRange, detail).with("first_offset", first),
            LogError::BeyondEnd { next, .. } => Self::new(Code::OffsetOutOfRange, detail).with("next_offset", next),
            // The file path is for the operator only and is in the event. The reader learns where reading can continue.
            LogError::Damaged { what, resume_at, .. } => {
                Self::new(Code::Damaged, format!("{what}; continue reading at offset {resume_at}"))
                    .with("resume_at", resume_at)
            }
            LogError::DiskFull(_) => Self::new(Code::DiskFull, detail),
            LogError::Overloaded(_) => Self::new(Code::Overloaded, detail),
            LogError::Poisoned(_) => Self::new(Code::LogClosed, detail),
            LogError::Unavailable(_) => Self::new(Code::Unavailable, detail),
            LogError::Unknown(_) => Self::new(Code::OutcomeUnknown, detail),
            LogError::Unsupported(_) => Self::new(Code::Unsupported, detail),
        }
    }
}

impl From<CatalogueError> for ApiProblem {
    fn from(error: CatalogueError) -> Self {
        let code = match error {
            CatalogueError::Conflict { .. } => Code::Conflict,
            CatalogueError::DiskFull => Code::DiskFull,
            CatalogueError::Unavailable(_) => Code::Unavailable,
            CatalogueError::OutcomeUnknown(_) => Code::OutcomeUnknown,
        };
        Self::new(code, error.to_string())
    }
}

impl From<TopicError> for ApiProblem {
    fn from(error: TopicError) -> Self {
        let detail = error.to_string();
        match error {
            TopicError::Unknown(_) => Self::new(Code::UnknownTopic, detail),
            TopicError::Shrink { .. } => Self::new(Code::CannotShrink, detail),
            TopicError::Partitions(_) => Self::new(Code::BadParameter, detail),
            TopicError::Copies { .. } => Self::new(Code::Unsupported, detail),
            TopicError::Workers { .. } => Self::new(Code::BadParameter, detail).with("field", "workers"),
            TopicError::UnknownWorker { .. } => Self::new(Code::UnknownWorker, detail),
            TopicError::TooMany { .. } | TopicError::NoNumber(_) => Self::new(Code::TooManyTopics, detail),
            TopicError::Growing(_) => Self::new(Code::TopicGrowing, detail),
            TopicError::NoSession(_) => Self::new(Code::NoSession, detail),
            TopicError::NotConfirmed(_) | TopicError::InUse(_) | TopicError::Malformed { .. } => {
                Self::new(Code::Unavailable, detail)
            }
            TopicError::Log(error) => error.into(),
            TopicError::Catalogue(error) => error.into(),
        }
    }
}

impl From<HoldsError> for ApiProblem {
    fn from(error: HoldsError) -> Self {
        let code = match error {
            HoldsError::NoOwner(_) => Code::NoOwner,
            HoldsError::OutcomeUnknown(_) => Code::OutcomeUnknown,
            HoldsError::Unavailable(_) => Code::Unavailable,
            HoldsError::Overloaded(_) => Code::Overloaded,
        };
        Self::new(code, error.to_string())
    }
}

impl From<SubscriptionError> for ApiProblem {
    fn from(error: SubscriptionError) -> Self {
        let detail = error.to_string();
        match error {
            SubscriptionError::Unknown(_) => Self::new(Code::UnknownSubscription, detail),
            SubscriptionError::Deleting(_) => Self::new(Code::SubscriptionDeleting, detail),
            SubscriptionError::TooMany => Self::new(Code::TooManySubscriptions, detail),
            SubscriptionError::TooManyReplays { .. } => Self::new(Code::TooManyReplays, detail),
            SubscriptionError::Unreadable { .. } => Self::new(Code::ReservedName, detail),
            SubscriptionError::NoPartition { .. } => Self::new(Code::BadParameter, detail).with("field", "offsets"),
            SubscriptionError::BeyondEnd { next, .. } => {
                Self::new(Code::OffsetBeyondEnd, detail).with("field", "offsets").with("next_offset", next)
            }
            SubscriptionError::InFuture(_) => Self::new(Code::BadTime, detail),
            SubscriptionError::EmptyStretch => Self::new(Code::BadParameter, detail),
            SubscriptionError::OwnerNeeded => Self::new(Code::NoOwner, detail),
            SubscriptionError::Malformed { .. } => Self::new(Code::Unavailable, detail),
            SubscriptionError::Topic(error) => error.into(),
            SubscriptionError::Log(error) => error.into(),
            SubscriptionError::Catalogue(error) => error.into(),
        }
    }
}

impl From<DispatchError> for ApiProblem {
    fn from(error: DispatchError) -> Self {
        let code = match error {
            DispatchError::NoOwner => Code::NoOwner,
            DispatchError::Unknown => Code::UnknownSubscription,
            DispatchError::WrongMode(_) => Code::WrongMode,
            DispatchError::Unavailable(_) => Code::Unavailable,
            DispatchError::OutcomeUnknown(_) => Code::OutcomeUnknown,
        };
        Self::new(code, error.to_string())
    }
}

impl From<PeopleNameError> for ApiProblem {
    fn from(error: PeopleNameError) -> Self {
        let code = match error {
            PeopleNameError::BadUid => Code::BadUid,
            PeopleNameError::BadPlatform => Code::BadPlatform,
            PeopleNameError::BadDevice => Code::BadDevice,
        };
        Self::new(code, error.to_string())
    }
}

impl From<PeopleError> for ApiProblem {
    fn from(error: PeopleError) -> Self {
        let code = match error {
            PeopleError::NoOwner(_) => Code::NoOwner,
            PeopleError::Unavailable(_) => Code::Unavailable,
            PeopleError::Overloaded(_) => Code::Overloaded,
        };
        Self::new(code, error.to_string())
    }
}

impl From<PresenceError> for ApiProblem {
    fn from(error: PresenceError) -> Self {
        let code = match error {
            PresenceError::NotFresh { .. } => Code::PresenceStale,
            PresenceError::Unavailable(_) => Code::Unavailable,
        };
        Self::new(code, error.to_string())
    }
}

impl From<DevicesError> for ApiProblem {
    fn from(error: DevicesError) -> Self {
        let code = match error {
            DevicesError::TooMany => Code::TooManyDevices,
            DevicesError::Unavailable(_) => Code::Unavailable,
        };
        Self::new(code, error.to_string())
    }
}

impl From<PlatformError> for ApiProblem {
    fn from(error: PlatformError) -> Self {
        match error {
            PlatformError::TooMany => Self::new(Code::TooManyPlatforms, error.to_string()),
            PlatformError::Catalogue(error) => error.into(),
        }
    }
}

impl From<ProgressError> for ApiProblem {
    fn from(error: ProgressError) -> Self {
        Self::new(Code::Unavailable, error.to_string())
    }
}

impl From<ReceiptsError> for ApiProblem {
    fn from(error: ReceiptsError) -> Self {
        Self::new(Code::Unavailable, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_code_has_a_unique_word_and_an_error_status() {
        let words: HashSet<_> = Code::ALL.iter().map(|code| code.word()).collect();
        assert_eq!(words.len(), Code::ALL.len());
        for code in Code::ALL {
            let status = code.status();
            assert!((400..600).contains(&status) && status != 500, "{code:?}");
            assert!(code.word().bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{code:?}");
        }
    }

    #[test]
    fn every_429_and_503_has_retry_after() {
        for code in Code::ALL {
            if matches!(code.status(), 429 | 503) {
                assert!(code.retry_after_s().is_some(), "{code:?}");
                let response = ApiProblem::new(*code, "x").into_response();
                assert!(response.headers().contains_key(RETRY_AFTER), "{code:?}");
            }
        }
    }

    #[test]
    fn a_damaged_problem_does_not_name_the_file() {
        let error =
            LogError::Damaged { what: "bad sum".into(), file: "/secret/place".into(), position: 1, resume_at: 9 };
        let json = ApiProblem::from(error).to_json();
        assert_eq!(json["resume_at"], 9);
        assert!(!json.to_string().contains("secret"));
    }

    #[test]
    fn a_problem_has_the_format_of_rfc_9457() {
        let json = ApiProblem::new(Code::BadEntry, "entry 3 has no payload").with("index", 3).to_json();
        assert_eq!(json["type"], "urn:whimbrel:problem:bad_entry");
        assert_eq!(json["status"], 422);
        assert_eq!(json["code"], "bad_entry");
        assert_eq!(json["index"], 3);
    }
}
