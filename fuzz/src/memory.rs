//! What an input costs, counted by the allocator.

use peak_alloc::PeakAlloc;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// Most memory that a piece of work had at a time, in bytes, beside what there was before.
pub fn peak_of(work: impl FnOnce()) -> usize {
    ALLOCATOR.reset_peak_usage();
    let before = ALLOCATOR.current_usage();
    work();
    ALLOCATOR.peak_usage().saturating_sub(before)
}
