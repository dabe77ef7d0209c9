//! Many independent cells, on all cores.

use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// What becomes of each item, in their order; `told` hears how many are done, from any thread.
pub(super) fn map<T: Sync, R: Send>(
    items: &[T],
    of: impl Fn(&T) -> R + Sync,
    told: &(dyn Fn(usize) + Sync),
) -> Vec<R> {
    let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get).min(items.len());
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let results: Mutex<Vec<(usize, R)>> = Mutex::new(Vec::with_capacity(items.len()));
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(index) else { return };
            let result = of(item);
            results.lock().expect("nobody panics with it").push((index, result));
            told(done.fetch_add(1, Ordering::Relaxed) + 1);
        }
    };
    thread::scope(|scope| {
        for _ in 1..cores {
            scope.spawn(work);
        }
        work();
    });
    let mut results = results.into_inner().expect("nobody panicked with it");
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_have_their_items_order() {
        let items: Vec<usize> = (0..100).collect();
        let heard = AtomicUsize::new(0);
        let told = |_| {
            heard.fetch_add(1, Ordering::Relaxed);
        };
        let squares = map(&items, |item| item * item, &told);
        assert!(squares.iter().enumerate().all(|(index, square)| *square == index * index));
        assert_eq!((squares.len(), heard.into_inner()), (100, 100));
        assert!(map(&[0; 0], |item| *item, &|_| {}).is_empty());
    }
}
