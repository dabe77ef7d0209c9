//! Which images a run is made of, as its files and its messages say it.

use serde::{Deserialize, Serialize};

use super::dataset::SampleLimits;
use super::error::DataError;
use super::source::{DatasetChoice, DatasetRequest, LoadedDataset, SearchRoots};

/// Which images are trained on and tested with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataPlan {
    /// What `--dataset` takes; none: the first that is found.
    pub dataset: Option<String>,
    pub train_limit: Option<usize>,
    pub test_limit: Option<usize>,
}

impl DataPlan {
    /// Loads the images; the seed is that of the synthetic digits.
    pub fn load(&self, seed: u64) -> Result<LoadedDataset, DataError> {
        DatasetRequest {
            choice: self.dataset.as_deref().map(str::parse).transpose()?,
            limits: SampleLimits { train: self.train_limit, test: self.test_limit },
            seed,
            roots: SearchRoots::default(),
        }
        .load()
    }

    /// The plan that loads the same images again, whatever else is installed by then and from
    /// whichever folder it is asked.
    pub fn pinned(&self, origin: &DatasetChoice) -> DataPlan {
        let dataset = match origin {
            DatasetChoice::Directory(folder) => {
                let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.clone());
                folder.display().to_string()
            }
            named => named.to_string(),
        };
        DataPlan { dataset: Some(dataset), ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_plan_names_its_data() {
        let plan = DataPlan { test_limit: Some(5), ..DataPlan::default() };
        let pinned = plan.pinned(&DatasetChoice::Synthetic);
        assert_eq!(pinned.dataset.as_deref(), Some("synthetic"));
        assert_eq!(pinned.test_limit, Some(5));
        let pinned = plan.pinned(&DatasetChoice::Directory("some/where".into()));
        assert!(std::path::Path::new(pinned.dataset.as_deref().unwrap()).is_absolute());
    }
}
