//! The two calls into the operating system that make a process different each time: its clock, and its randomness.
//!
//! Both are functions of the C library that everything else in the process calls, the standard library included. A
//! function of the same name in the program itself comes first when it is linked. So hash maps, jitter and the random
//! choices of the async runtime follow from the seed, and time is the one of the simulation. Before [`begin`] the real
//! ones are used.

use std::ffi::{c_int, c_long, c_uint, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use crate::prng::Prng;

/// Begin of each simulation, in seconds since 1970.
pub(crate) const BEGIN: i64 = 1_790_000_000;

/// Begin of the monotonic clock. Some code subtracts from an instant.
const MONOTONIC_BEGIN: u64 = 1_000_000_000_000_000;
const NANOS: u64 = 1_000_000_000;

static IS_SIMULATED: AtomicBool = AtomicBool::new(false);
/// Virtual time at which the current runtime was started, in nanoseconds.
static RUNTIME_BEGIN: AtomicU64 = AtomicU64::new(0);
/// Difference of the server's clock from the right time, in nanoseconds.
static SKEW: AtomicI64 = AtomicI64::new(0);
static RANDOM: AtomicU64 = AtomicU64::new(0);
static EPOCH: OnceLock<Instant> = OnceLock::new();

/// Makes this process a function of a seed. Comes first, before any other thread.
pub(crate) fn begin(seed: u64) {
    RANDOM.store(seed, Ordering::SeqCst);
    IS_SIMULATED.store(true, Ordering::SeqCst);
    let _ = EPOCH.set(Instant::now());
}

/// Time since the begin of the simulation.
pub(crate) fn now() -> Duration {
    Duration::from_nanos(virtual_nanos())
}

/// Sets the time at which the next runtime starts. None may be active.
pub(crate) fn continue_at(time: Duration) {
    RUNTIME_BEGIN.store(nanos(time), Ordering::SeqCst);
}

/// Lets the server's clock go wrong by so many seconds.
pub(crate) fn set_skew(seconds: i64) {
    SKEW.store(seconds.saturating_mul(1_000_000_000), Ordering::SeqCst);
}

/// Current difference of the server's clock from the right time, in seconds.
pub(crate) fn skew() -> i64 {
    SKEW.load(Ordering::SeqCst) / 1_000_000_000
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The paused clock of the current runtime does not read the clock of the system, so this does not call itself.
fn virtual_nanos() -> u64 {
    match (EPOCH.get(), Handle::try_current()) {
        (Some(epoch), Ok(_)) => {
            nanos(tokio::time::Instant::now().into_std().saturating_duration_since(*epoch))
        }
        _ => RUNTIME_BEGIN.load(Ordering::SeqCst),
    }
}

/// As the C library has it.
#[repr(C)]
struct Timespec {
    seconds: i64,
    nanoseconds: c_long,
}

const CLOCK_REALTIME: c_int = 0;
const CLOCK_REALTIME_COARSE: c_int = 5;

#[cfg(target_arch = "x86_64")]
const SYSTEM_CALLS: (c_long, c_long) = (228, 318);
#[cfg(target_arch = "aarch64")]
const SYSTEM_CALLS: (c_long, c_long) = (113, 278);

#[expect(unsafe_code, reason = "the functions of the C library that are replaced")]
mod replaced {
    use super::{
        BEGIN, CLOCK_REALTIME, CLOCK_REALTIME_COARSE, IS_SIMULATED, MONOTONIC_BEGIN, NANOS,
        Ordering, Prng, RANDOM, SKEW, SYSTEM_CALLS, Timespec, c_int, c_long, c_uint, c_void,
        virtual_nanos,
    };

    unsafe extern "C" {
        fn syscall(number: c_long, ...) -> c_long;
    }

    /// # Safety
    /// As in the C library: `time` is null or points to where the time is written.
    #[unsafe(no_mangle)]
    pub(super) unsafe extern "C" fn clock_gettime(clock: c_int, time: *mut Timespec) -> c_int {
        if !IS_SIMULATED.load(Ordering::SeqCst) || time.is_null() {
            // SAFETY: the arguments are those of the caller.
            let outcome = unsafe { syscall(SYSTEM_CALLS.0, clock, time) };
            return c_int::try_from(outcome).unwrap_or(-1);
        }
        let passed = virtual_nanos();
        let (seconds, nanoseconds) = if [CLOCK_REALTIME, CLOCK_REALTIME_COARSE].contains(&clock) {
            let skewed = i64::try_from(passed).unwrap_or(i64::MAX) + SKEW.load(Ordering::SeqCst);
            (BEGIN + skewed.div_euclid(1_000_000_000), skewed.rem_euclid(1_000_000_000))
        } else {
            let passed = MONOTONIC_BEGIN + passed;
            ((passed / NANOS).cast_signed(), (passed % NANOS).cast_signed())
        };
        // SAFETY: not null, and the caller lets us write there.
        unsafe { time.write(Timespec { seconds, nanoseconds }) };
        0
    }

    /// # Safety
    /// As in the C library: `buffer` has room for `length` bytes.
    #[unsafe(no_mangle)]
    pub(super) unsafe extern "C" fn getrandom(
        buffer: *mut c_void,
        length: usize,
        flags: c_uint,
    ) -> isize {
        if !IS_SIMULATED.load(Ordering::SeqCst) {
            // SAFETY: the arguments are those of the caller.
            let outcome = unsafe { syscall(SYSTEM_CALLS.1, buffer, length, flags) };
            return isize::try_from(outcome).unwrap_or(-1);
        }
        let mut random = Prng::new(RANDOM.fetch_add(1, Ordering::SeqCst));
        // SAFETY: the caller has room for as many bytes.
        let bytes = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), length) };
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&random.next_u64().to_le_bytes()[..chunk.len()]);
        }
        isize::try_from(length).unwrap_or(-1)
    }
}
