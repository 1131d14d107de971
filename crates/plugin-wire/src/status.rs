//! Errors on the wire.

use std::error::Error as _;
use std::fmt::Write as _;

use bowline_plugin::{Code, Error, Origin};
use prost::Message;
use prost_types::Any;
use tonic::Status;

use crate::connection::ConnectionLost;
use crate::proto::generated::{Stack, StackFrame};
use crate::proto::rpc;

/// Maximum length of a plugin's text: enough for usual stack traces, and a bound on abuse.
const MAX_TEXT: usize = 64 << 10;

/// The type of the one detail that plugins send.
const STACK_TYPE_URL: &str = "type.googleapis.com/generated.Stack";

/// The error as the caller sees it: code and text of the plugin, and the origin that it names.
#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
pub(crate) fn to_error(status: Status) -> Error {
    let details = rpc::Status::decode(status.details()).unwrap_or_default();
    let mut message = status.message().to_owned();
    if message.is_empty() {
        message = details.message;
    }
    let mut code = from_grpc(status.code());
    // Only errors of this side have a source. In that case the plugin did not answer.
    let mut source = status.source();
    if source.is_some() && code == Code::Unknown {
        code = Code::Unavailable;
    }
    let mut is_undelivered = false;
    while let Some(error) = source {
        is_undelivered |= is_connection_lost(error);
        let text = error.to_string();
        if !message.contains(&text) {
            let _ = write!(message, ": {text}");
        }
        source = error.source();
    }
    if message.len() > MAX_TEXT {
        message.truncate(message.floor_char_boundary(MAX_TEXT));
        message.push('…');
    }
    let error = Error::new(code, message).from_origin(details.details.iter().find_map(origin));
    if is_undelivered { error.undelivered() } else { error }
}

/// True if the connection was lost before the call was sent. An `io::Error` hides the error that it
/// wraps from the chain of causes.
fn is_connection_lost(error: &(dyn std::error::Error + 'static)) -> bool {
    let wrapped = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
    error.is::<ConnectionLost>()
        || wrapped.and_then(|inner| inner.downcast_ref::<ConnectionLost>()).is_some()
}

/// Converts an error to the status that is sent.
#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
pub(crate) fn from_error(error: Error) -> Status {
    let code = to_grpc(error.code());
    let Some(origin) = error.origin() else { return Status::new(code, error.message()) };
    let stack = Stack { frames: vec![frame(origin)] };
    let details = rpc::Status {
        code: code.into(),
        message: error.message().to_owned(),
        details: vec![Any { type_url: STACK_TYPE_URL.to_owned(), value: stack.encode_to_vec() }],
    };
    Status::with_details(code, error.message(), details.encode_to_vec().into())
}

/// The innermost frame of a stack.
fn origin(detail: &Any) -> Option<Origin> {
    if detail.type_url != STACK_TYPE_URL {
        return None;
    }
    let frame = Stack::decode(detail.value.as_slice()).ok()?.frames.into_iter().next()?;
    let file = match frame.line {
        0 => frame.file,
        line => format!("{}:{line}", frame.file),
    };
    Some(Origin { file, function: frame.function })
}

fn frame(origin: &Origin) -> StackFrame {
    let split = origin.file.rsplit_once(':');
    let (file, line) = split
        .and_then(|(file, line)| Some((file, line.parse().ok()?)))
        .unwrap_or((&origin.file, 0));
    StackFrame { file: file.to_owned(), line, function: origin.function.clone() }
}

/// Maps the codes of both sides, which have the same names.
macro_rules! codes {
    ($($name:ident),*) => {
        fn from_grpc(code: tonic::Code) -> Code {
            match code {
                // Not an error, so its meaning is unknown.
                tonic::Code::Ok => Code::Unknown,
                $(tonic::Code::$name => Code::$name,)*
            }
        }

        fn to_grpc(code: Code) -> tonic::Code {
            match code {
                $(Code::$name => tonic::Code::$name,)*
            }
        }
    };
}

codes!(
    Cancelled,
    Unknown,
    InvalidArgument,
    DeadlineExceeded,
    NotFound,
    AlreadyExists,
    PermissionDenied,
    ResourceExhausted,
    FailedPrecondition,
    Aborted,
    OutOfRange,
    Unimplemented,
    Internal,
    Unavailable,
    DataLoss,
    Unauthenticated
);

#[cfg(test)]
mod tests {
    use super::*;

    fn error(file: &str) -> Error {
        let origin = Origin { file: file.into(), function: "main.run".into() };
        Error::new(Code::NotFound, "no such snapshot").from_origin(Some(origin))
    }

    #[test]
    fn error_keeps_code_text_and_origin() {
        for sent in [
            Error::unknown("näh\n100 %"),
            Error::unimplemented("Progress"),
            error("a/b.go:12"),
            error("C:\\a.go"),
            error("a.go:x"),
            error(""),
        ] {
            assert_eq!(to_error(from_error(sent.clone())), sent);
        }
    }

    #[test]
    fn details_repeat_code_and_text_as_go_requires() {
        let status = from_error(error("a.go:1"));
        let details = rpc::Status::decode(status.details()).unwrap();
        assert_eq!(details.code, 5);
        assert_eq!(details.message, "no such snapshot");
    }

    #[test]
    fn invalid_details_leave_the_text_unchanged() {
        let other = rpc::Status {
            code: 2,
            message: "inner".into(),
            details: vec![Any { type_url: "type.googleapis.com/x".into(), value: vec![255; 3] }],
        };
        for details in [vec![255; 9], other.encode_to_vec()] {
            let status = Status::with_details(tonic::Code::Unknown, "outer", details.into());
            assert_eq!(to_error(status), Error::unknown("outer"));
        }
        let status = Status::with_details(tonic::Code::Unknown, "", other.encode_to_vec().into());
        assert_eq!(to_error(status), Error::unknown("inner"), "better than no text");
    }
}
