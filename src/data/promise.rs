//! A data set that somebody needs while it is still being read.

use std::sync::{Arc, OnceLock};

use super::dataset::Dataset;

/// A data set, or what will be one: so that adapters are opened and kernels compiled while files
/// are read. Clones are the same promise.
#[derive(Clone, Debug)]
pub struct DatasetPromise(Arc<OnceLock<Option<Arc<Dataset>>>>);

/// Keeps a [`DatasetPromise`]; if it is dropped without, the promise is broken.
#[derive(Debug)]
pub struct DatasetKeeper(DatasetPromise);

impl DatasetPromise {
    /// A promise and who is to keep it.
    pub fn pending() -> (DatasetPromise, DatasetKeeper) {
        let promise = DatasetPromise(Arc::default());
        (promise.clone(), DatasetKeeper(promise))
    }

    /// Waits for the data set; none if it could not be read.
    pub fn wait(&self) -> Option<&Arc<Dataset>> {
        self.0.wait().as_ref()
    }

    /// Whether it is known that there will be no data set.
    pub fn is_broken(&self) -> bool {
        matches!(self.0.get(), Some(None))
    }
}

impl From<Arc<Dataset>> for DatasetPromise {
    fn from(dataset: Arc<Dataset>) -> DatasetPromise {
        DatasetPromise(Arc::new(OnceLock::from(Some(dataset))))
    }
}

impl DatasetKeeper {
    /// Hands the data set to all who wait for it.
    pub fn keep(self, dataset: Arc<Dataset>) {
        let kept = self.0.0.set(Some(dataset));
        debug_assert!(kept.is_ok(), "a promise has one keeper");
    }
}

impl Drop for DatasetKeeper {
    fn drop(&mut self) {
        // An error means that the promise was kept.
        let _ = self.0.0.set(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_keeper_breaks_the_promise() {
        let (promise, keeper) = DatasetPromise::pending();
        assert!(!promise.is_broken());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| promise.wait().is_none());
            drop(keeper);
            assert!(waiting.join().unwrap());
        });
        assert!(promise.is_broken());
    }
}
