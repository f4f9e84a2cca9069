//! Problems: every refusal of the door, as RFC 9457 writes them.
//!
//! [`Code`] is the one list of the stable words, each with its status and title, so that HTTP, gRPC, the API document and the
//! reference cannot disagree. A problem says what was wrong with this request in `detail`; it must never carry what only the
//! operator may know, and no bad input may become a 500 (there is no such code to give).

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
        /// What went wrong, as a stable word.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Code { $(#[doc = $title] $variant,)+ }

        impl Code {
            /// Every code there is, in the order of their statuses.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// The stable word that clients branch on.
            pub const fn word(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }

            pub const fn status(self) -> u16 {
                match self { $(Self::$variant => $status,)+ }
            }

            /// One line for people, the same for every problem of this code.
            pub const fn title(self) -> &'static str {
                match self { $(Self::$variant => $title,)+ }
            }
        }
    };
}

codes! {
    BadBody 400 "bad_body" "The body could not be read to its end",
    BadRequest 400 "bad_request" "The request is not valid HTTP",
    KeyMissing 401 "key_missing" "A key is needed",
    KeyUnknown 401 "key_unknown" "The key is not one of this server",
    Forbidden 403 "forbidden" "The key is not for this",
    OriginNotAllowed 403 "origin_not_allowed" "A page from there may not do this",
    UnknownPath 404 "unknown_path" "There is nothing at this path",
    UnknownTopic 404 "unknown_topic" "There is no such topic",
    UnknownPartition 404 "unknown_partition" "The topic has no such partition",
    UnknownMessage 404 "unknown_message" "There is no such message",
    UnknownHold 404 "unknown_hold" "There is no such hold",
    UnknownSubscription 404 "unknown_subscription" "There is no such subscription",
    UnknownDevice 404 "unknown_device" "The user has no such device",
    UnknownWorker 404 "unknown_worker" "There is no such worker",
    MethodNotAllowed 405 "method_not_allowed" "The path does not take this method",
    BodyTooSlow 408 "body_too_slow" "The body did not come on in time",
    InProgress 409 "in_progress" "A publish under the same key is under way",
    Conflict 409 "conflict" "Somebody else changed it at the same time",
    IdTaken 409 "id_taken" "Another hold has this id",
    AlreadyFired 409 "already_fired" "The hold has fired",
    AlreadyWithdrawn 409 "already_withdrawn" "The hold was withdrawn",
    AlreadyDead 409 "already_dead" "The hold could never be written",
    HoldsPending 409 "holds_pending" "Holds of this topic are pending",
    TopicSubscribed 409 "topic_subscribed" "Subscriptions read this topic",
    SubscriptionDeleting 409 "subscription_deleting" "The subscription is being deleted",
    WrongMode 409 "wrong_mode" "The subscription is of the other mode",
    TooManyReplays 409 "too_many_replays" "As many replays as there can be are under way",
    Damaged 410 "damaged" "The log cannot be read at this place",
    VersionDiffers 412 "version_differs" "The hold has another version",
    PayloadTooLarge 413 "payload_too_large" "The payload is over the limit",
    BatchTooLarge 413 "batch_too_large" "The batch is over a limit",
    OffsetOutOfRange 416 "offset_out_of_range" "The offset is not among those kept",
    BadName 422 "bad_name" "This cannot be a name",
    ReservedName 422 "reserved_name" "The name is the system's",
    BadUid 422 "bad_uid" "This cannot be a user's id",
    BadPlatform 422 "bad_platform" "This cannot be a platform",
    BadDevice 422 "bad_device" "This cannot be a device",
    BadId 422 "bad_id" "This cannot be a message id",
    BadKey 422 "bad_key" "This cannot be a partition key",
    BadParameter 422 "bad_parameter" "A parameter is wrong",
    BadDuration 422 "bad_duration" "This is no possible duration",
    BadTime 422 "bad_time" "This is no possible time",
    BadHeader 422 "bad_header" "This cannot be a message's header",
    ReservedHeader 422 "reserved_header" "A message cannot bring this header",
    TooManyHeaders 422 "too_many_headers" "The message has too many headers",
    HeaderTooLarge 422 "header_too_large" "A header is over the limit",
    BadJson 422 "bad_json" "This is not the JSON that is expected here",
    BadEntry 422 "bad_entry" "An entry of the batch is wrong",
    DifferentBody 422 "different_body" "The key was used with another message before",
    BadUrl 422 "bad_url" "This cannot be called",
    ForbiddenAddress 422 "forbidden_address" "Callbacks and notices may not go there",
    BadSecret 422 "bad_secret" "This cannot sign",
    OffsetBeyondEnd 422 "offset_beyond_end" "The offset is beyond the end",
    CannotShrink 422 "cannot_shrink" "Partitions grow only",
    Unsupported 422 "unsupported" "The engine cannot do this",
    TooManyTopics 422 "too_many_topics" "No more topics can be made",
    TooManySubscriptions 422 "too_many_subscriptions" "No more subscriptions can be made",
    TooManyPlatforms 422 "too_many_platforms" "No more platforms can be configured",
    TooManyDevices 422 "too_many_devices" "The user has as many devices as there can be",
    Overloaded 429 "overloaded" "Too much is under way",
    TooManyRequestHeaders 431 "too_many_request_headers" "The request has too many headers",
    NotYet 501 "not_yet" "This comes with a later version",
    UnsupportedTransferCoding 501 "unsupported_transfer_coding" "The transfer coding is not supported",
    DiskFull 503 "disk_full" "The disk is full",
    LogClosed 503 "log_closed" "The log takes nothing until a restart",
    Unavailable 503 "unavailable" "A part of the system cannot be reached",
    NoOwner 503 "no_owner" "The shard has no owner at the moment",
    TopicGrowing 503 "topic_growing" "The topic is growing",
    NoSession 503 "no_session" "The node has no session with the coordination service",
    PartlyAppended 503 "partly_appended" "Only some of the messages were taken",
    NotFresh 503 "not_fresh" "Who is online is not known at the moment",
    NotReady 503 "not_ready" "The server is not ready",
    OutcomeUnknown 504 "outcome_unknown" "Whether it happened is not known",
}

impl Code {
    /// Seconds that a client shall wait: each 429 and 503, and what passes by itself.
    pub const fn retry_after_s(self) -> Option<u32> {
        match self {
            Self::InProgress
            | Self::Overloaded
            | Self::NoOwner
            | Self::TopicGrowing
            | Self::NoSession
            | Self::PartlyAppended
            | Self::NotFresh
            | Self::NotReady => Some(1),
            Self::Unavailable => Some(2),
            Self::DiskFull => Some(10),
            Self::LogClosed => Some(30),
            _ => None,
        }
    }
}

/// One refusal, on its way to the client.
#[derive(Debug, Clone)]
pub struct Problem(Box<Parts>);

#[derive(Debug, Clone)]
struct Parts {
    code: Code,
    detail: Cow<'static, str>,
    members: Map<String, Value>,
}

impl Problem {
    pub fn new(code: Code, detail: impl Into<Cow<'static, str>>) -> Self {
        Self(Box::new(Parts { code, detail: detail.into(), members: Map::new() }))
    }

    /// Adds a member for programs, such as the index of the entry that is wrong.
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

    /// The whole problem as JSON.
    pub fn to_json(&self) -> Value {
        let Parts { code, detail, members } = &*self.0;
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

impl IntoResponse for Problem {
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

impl From<NameError> for Problem {
    fn from(error: NameError) -> Self {
        let code = match error {
            NameError::Reserved => Code::ReservedName,
            NameError::BadId | NameError::SystemId => Code::BadId,
            _ => Code::BadName,
        };
        Self::new(code, error.to_string())
    }
}

impl From<LogError> for Problem {
    fn from(error: LogError) -> Self {
        let detail = error.to_string();
        match error {
            LogError::UnknownPartition(_) => Self::new(Code::UnknownPartition, detail),
            LogError::TooLarge { limit, .. } => Self::new(Code::PayloadTooLarge, detail).with("limit", limit),
            LogError::Trimmed { first, .. } => Self::new(Code::OffsetOutOfRange, detail).with("first_offset", first),
            LogError::BeyondEnd { next, .. } => Self::new(Code::OffsetOutOfRange, detail).with("next_offset", next),
            // Where the file lies is the operator's business, and in the event; the reader learns where to go on.
            LogError::Damaged { what, resume_at, .. } => {
                Self::new(Code::Damaged, format!("{what}; reading can go on from offset {resume_at}"))
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

impl From<CatalogueError> for Problem {
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

impl From<TopicError> for Problem {
    fn from(error: TopicError) -> Self {
        let detail = error.to_string();
        match error {
            TopicError::Unknown(_) => Self::new(Code::UnknownTopic, detail),
            TopicError::Shrink { .. } => Self::new(Code::CannotShrink, detail),
            TopicError::Partitions(_) => Self::new(Code::BadParameter, detail),
            TopicError::Copies { .. } => Self::new(Code::Unsupported, detail),
            TopicError::Workers { .. } => Self::new(Code::BadParameter, detail).with("field", "workers"),
            TopicError::UnknownWorker { .. } => Self::new(Code::UnknownWorker, detail),
            TopicError::TooMany(_) => Self::new(Code::TooManyTopics, detail),
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

impl From<HoldsError> for Problem {
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

impl From<SubscriptionError> for Problem {
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

impl From<DispatchError> for Problem {
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

impl From<PeopleNameError> for Problem {
    fn from(error: PeopleNameError) -> Self {
        let code = match error {
            PeopleNameError::BadUid => Code::BadUid,
            PeopleNameError::BadPlatform => Code::BadPlatform,
            PeopleNameError::BadDevice => Code::BadDevice,
        };
        Self::new(code, error.to_string())
    }
}

impl From<PeopleError> for Problem {
    fn from(error: PeopleError) -> Self {
        let code = match error {
            PeopleError::NoOwner(_) => Code::NoOwner,
            PeopleError::Unavailable(_) => Code::Unavailable,
            PeopleError::Overloaded(_) => Code::Overloaded,
        };
        Self::new(code, error.to_string())
    }
}

impl From<PresenceError> for Problem {
    fn from(error: PresenceError) -> Self {
        let code = match error {
            PresenceError::NotFresh { .. } => Code::NotFresh,
            PresenceError::Unavailable(_) => Code::Unavailable,
        };
        Self::new(code, error.to_string())
    }
}

impl From<DevicesError> for Problem {
    fn from(error: DevicesError) -> Self {
        let code = match error {
            DevicesError::TooMany => Code::TooManyDevices,
            DevicesError::Unavailable(_) => Code::Unavailable,
        };
        Self::new(code, error.to_string())
    }
}

impl From<PlatformError> for Problem {
    fn from(error: PlatformError) -> Self {
        match error {
            PlatformError::TooMany => Self::new(Code::TooManyPlatforms, error.to_string()),
            PlatformError::Catalogue(error) => error.into(),
        }
    }
}

impl From<ProgressError> for Problem {
    fn from(error: ProgressError) -> Self {
        Self::new(Code::Unavailable, error.to_string())
    }
}

impl From<ReceiptsError> for Problem {
    fn from(error: ReceiptsError) -> Self {
        Self::new(Code::Unavailable, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_code_has_a_word_of_its_own_and_a_status_of_a_refusal() {
        let words: HashSet<_> = Code::ALL.iter().map(|code| code.word()).collect();
        assert_eq!(words.len(), Code::ALL.len());
        for code in Code::ALL {
            let status = code.status();
            assert!((400..600).contains(&status) && status != 500, "{code:?}");
            assert!(code.word().bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{code:?}");
        }
    }

    #[test]
    fn every_429_and_503_says_when_to_come_again() {
        for code in Code::ALL {
            if matches!(code.status(), 429 | 503) {
                assert!(code.retry_after_s().is_some(), "{code:?}");
                let response = Problem::new(*code, "x").into_response();
                assert!(response.headers().contains_key(RETRY_AFTER), "{code:?}");
            }
        }
    }

    #[test]
    fn damage_is_told_without_the_file_it_lies_in() {
        let error =
            LogError::Damaged { what: "bad sum".into(), file: "/secret/place".into(), position: 1, resume_at: 9 };
        let json = Problem::from(error).to_json();
        assert_eq!(json["resume_at"], 9);
        assert!(!json.to_string().contains("secret"));
    }

    #[test]
    fn a_problem_is_written_as_rfc_9457_has_it() {
        let json = Problem::new(Code::BadEntry, "entry 3 has no payload").with("index", 3).to_json();
        assert_eq!(json["type"], "urn:whimbrel:problem:bad_entry");
        assert_eq!(json["status"], 422);
        assert_eq!(json["code"], "bad_entry");
        assert_eq!(json["index"], 3);
    }
}
