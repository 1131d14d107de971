//! Speed of work in progress, if it is known.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// Average speed since the start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct TransferRate {
    pub(crate) per_second: f64,
    /// Seconds, if the total is known.
    pub(crate) seconds_remaining: Option<u64>,
}

/// Average speed at a given time. A total that is not positive is unknown.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an estimate, of what is not negative"
)]
pub(crate) fn average_rate(
    done: i64,
    total: i64,
    started: Option<&Time>,
    updated: Option<&Time>,
) -> Option<TransferRate> {
    let seconds = updated?.0.duration_since(started?.0).as_secs_f64();
    if done <= 0 || seconds <= 0.0 {
        return None;
    }
    let per_second = done as f64 / seconds;
    let remaining = total.checked_sub(done).filter(|remaining| *remaining > 0);
    let seconds_remaining = remaining.map(|rest| (rest as f64 / per_second).ceil() as u64);
    Some(TransferRate { per_second, seconds_remaining })
}
