//! The few calls of librdkafka that the safe binding lacks. Everything `unsafe` of the engine is in this file.

use std::ffi::CStr;
use std::ptr;

use bytes::BytesMut;
use rdkafka::bindings as sys;
use rdkafka::consumer::Consumer as _;
use rdkafka::message::{BorrowedMessage, Message};
use rdkafka::{Offset, TopicPartitionList};
use whimbrel_model::{Headers, HeadersBuilder};

use super::context::Consumer;

/// Whether a record whose delivery failed may be in the log all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Persistence {
    /// It was never sent, or the broker refused it.
    Excluded,
    /// It was sent, and no answer came.
    Possible,
}

/// What librdkafka knows about a record whose delivery failed.
pub(super) fn persistence_of(message: &BorrowedMessage<'_>) -> Persistence {
    // SAFETY: the message is borrowed from its event, so the pointer is valid, and the call only reads.
    match unsafe { sys::rd_kafka_message_status(message.ptr()) } {
        sys::rd_kafka_msg_status_t::RD_KAFKA_MSG_STATUS_NOT_PERSISTED => Persistence::Excluded,
        _ => Persistence::Possible,
    }
}

/// Where the consumer reads on: past what was taken from its queue and past the markers that were skipped. `None` before it
/// took anything.
///
/// The binding's own `position` asks for every partition of the consumer.
pub(super) fn position(consumer: &Consumer, topic: &str, index: u32) -> Option<u64> {
    let mut list = TopicPartitionList::with_capacity(1);
    list.add_partition(topic, index as i32);
    // SAFETY: both pointers are valid for the call, which writes only into the list's elements.
    unsafe { sys::rd_kafka_position(consumer.client().native_ptr(), list.ptr()) };
    match list.elements().first()?.offset() {
        Offset::Offset(offset) => u64::try_from(offset).ok(),
        _ => None,
    }
}

/// The headers of a message. Names are taken as bytes: others may have written names that are not text, on which the binding's
/// own accessor panics. Such a name becomes text with replacement characters; a value that is null becomes empty.
pub(super) fn headers_of(message: &BorrowedMessage<'_>) -> Headers {
    let mut headers = ptr::null_mut();
    // SAFETY: the message is borrowed from its event; the headers that are returned belong to it and live as long.
    let error = unsafe { sys::rd_kafka_message_headers(message.ptr(), &mut headers) };
    if error != sys::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR {
        return Headers::EMPTY;
    }
    let mut builder: HeadersBuilder = Headers::builder();
    for index in 0.. {
        let (mut name, mut value, mut value_len) = (ptr::null(), ptr::null(), 0);
        // SAFETY: as above; an index past the end is answered with an error and writes nothing.
        let error = unsafe { sys::rd_kafka_header_get_all(headers, index, &mut name, &mut value, &mut value_len) };
        if error != sys::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR {
            break;
        }
        // SAFETY: librdkafka ends every name with a NUL, and a value that is not null has its length in bytes.
        let (name, value) = unsafe {
            let value =
                if value.is_null() { &[][..] } else { std::slice::from_raw_parts(value.cast::<u8>(), value_len) };
            (CStr::from_ptr(name).to_string_lossy(), value)
        };
        builder.push(&name[..name.floor_char_boundary(usize::from(u16::MAX))], value);
    }
    builder.take()
}

/// Key and value of a message in one allocation.
pub(super) fn key_and_value_of(message: &BorrowedMessage<'_>) -> (Option<bytes::Bytes>, bytes::Bytes) {
    let (key, value) = (message.key(), message.payload().unwrap_or_default());
    let mut buffer = BytesMut::with_capacity(key.map_or(0, <[u8]>::len) + value.len());
    let key = key.map(|key| {
        buffer.extend_from_slice(key);
        buffer.split().freeze()
    });
    buffer.extend_from_slice(value);
    (key, buffer.freeze())
}
