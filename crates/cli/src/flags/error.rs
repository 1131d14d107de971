//! Reasons why the value of a flag is invalid.

use bowline_api::duration;

/// Invalid value of a flag. Clap prints the message after the flag, and no causes: the message has all of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidValue {
    #[error(transparent)]
    Duration(#[from] duration::Error),
    #[error("{error}; {days} days are {}h", days.saturating_mul(24))]
    Days { error: duration::Error, days: u64 },
    #[error("must not be negative")]
    Negative,
    #[error("must be longer than 0s")]
    ZeroTimeout,
    #[error("expected true or false")]
    Boolean,
    #[error("expected one SECRET=KEY")]
    Credential,
    #[error("expected KEY=VALUE, not `{0}`")]
    Pair(String),
    #[error("must have the form KEY=VALUE")]
    SinglePair,
    #[error("expected FROM:TO, not `{0}`")]
    Mapping(String),
    #[error("expected PROVIDER:NAME, not `{0}`")]
    LocationOfProvider(String),
    #[error("a double quote is not closed")]
    UnclosedQuote,
    #[error("a comma must follow the closing double quote")]
    TextAfterQuote,
    #[error("must not be empty")]
    Empty,
    #[error("must not contain a slash; set a prefix with --prefix")]
    BucketWithSlash,
    #[error("must be a number from 1 to 1000")]
    TaskCount,
    #[error("must be from 1Mi to 1024Mi")]
    Mebibytes,
    #[error("must be a number of bytes in whole MiB or GiB, such as 192Mi or 16Gi")]
    Bytes,
    #[error("must be a number of whole GiB, such as 10Gi, or 0")]
    Gibibytes,
}
