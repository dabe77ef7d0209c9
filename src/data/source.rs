//! Where a data set comes from: a folder, a name, the usual places, or the synthetic digits.

use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::dataset::{Dataset, ImageSet, SampleLimits};
use super::error::{DataError, list};
use super::{idx, synthetic};
use crate::model::layers::IMAGE_PIXELS;

/// The data set that a user asks for: `DIR | fashion-mnist | mnist | synthetic`.
///
/// The three names come first; a folder of such a name is written `./mnist`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DatasetChoice {
    /// A folder that holds the four IDX files.
    Directory(PathBuf),
    /// Zalando's articles of clothing (Xiao, Rasul, Vollgraf 2017), from the usual places.
    FashionMnist,
    /// The handwritten digits (LeCun et al. 1998), from the usual places.
    Mnist,
    /// Digits drawn from strokes; needs no file.
    Synthetic,
}

impl FromStr for DatasetChoice {
    type Err = DataError;

    fn from_str(text: &str) -> Result<Self, DataError> {
        match text {
            "" => Err(DataError::EmptyChoice),
            FASHION_MNIST => Ok(DatasetChoice::FashionMnist),
            MNIST => Ok(DatasetChoice::Mnist),
            SYNTHETIC => Ok(DatasetChoice::Synthetic),
            folder => Ok(DatasetChoice::Directory(folder.into())),
        }
    }
}

impl fmt::Display for DatasetChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DatasetChoice::Directory(folder) => folder.display().fmt(f),
            DatasetChoice::FashionMnist => f.write_str(FASHION_MNIST),
            DatasetChoice::Mnist => f.write_str(MNIST),
            DatasetChoice::Synthetic => f.write_str(SYNTHETIC),
        }
    }
}

/// The folders below which data sets are looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchRoots {
    /// Where packages put data sets, a folder each.
    pub system: PathBuf,
    /// The user's own.
    pub local: PathBuf,
}

impl Default for SearchRoots {
    /// `/usr/share/datasets`, where Debian's dataset-fashion-mnist puts its files, and `./data`.
    fn default() -> Self {
        SearchRoots { system: "/usr/share/datasets".into(), local: "./data".into() }
    }
}

/// What to load.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DatasetRequest {
    /// Without a choice: `fashion-mnist` of the system; then what lies in the local folder itself,
    /// in `fashion-mnist` or `mnist` below it, or where torchvision downloads to if it is given
    /// that folder; then the synthetic digits.
    pub choice: Option<DatasetChoice>,
    pub limits: SampleLimits,
    /// Seed of the synthetic digits.
    pub seed: u64,
    pub roots: SearchRoots,
}

/// A data set and where it came from.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadedDataset {
    pub dataset: Dataset,
    /// The folder that was read, or `Synthetic`: as a choice it loads the same data again.
    pub origin: DatasetChoice,
    /// What the user should know, a sentence or two each.
    pub notices: Vec<String>,
}

impl DatasetRequest {
    /// Finds, reads and checks the data set.
    ///
    /// # Errors
    /// If a folder or name that was asked for has no data set, if a folder that is looked at holds
    /// only a part of one (nothing is silently replaced by digits), if a file is not sound, or if a
    /// limit is 0.
    pub fn load(&self) -> Result<LoadedDataset, DataError> {
        for (flag, limit) in self.limits_by_flag() {
            if limit == Some(0) {
                return Err(DataError::EmptyLimit { flag });
            }
        }
        let mut notices = Vec::new();
        let (name, origin, train, test) = match self.locate(&mut notices)? {
            Some((place, files)) => {
                let train = read_set(&files.train_images, &files.train_labels)?;
                let test = read_set(&files.test_images, &files.test_labels)?;
                (place.name, DatasetChoice::Directory(place.folder), train, test)
            }
            None => {
                let (train, test) = synthetic::train_and_test(self.seed);
                (SYNTHETIC.to_owned(), DatasetChoice::Synthetic, train, test)
            }
        };
        for ((flag, limit), set) in self.limits_by_flag().into_iter().zip([&train, &test]) {
            if let Some(limit) = limit.filter(|&limit| limit > set.count()) {
                notices.push(format!(
                    "{flag} {limit}: the set has {} samples, all of them are used",
                    set.count()
                ));
            }
        }
        let dataset = Dataset::new(name, train, test, self.limits);
        Ok(LoadedDataset { dataset, origin, notices })
    }

    fn limits_by_flag(&self) -> [(&'static str, Option<usize>); 2] {
        [("--train-limit", self.limits.train), ("--test-limit", self.limits.test)]
    }

    /// The files to read, or none for the synthetic digits.
    fn locate(&self, notices: &mut Vec<String>) -> Result<Option<(Place, Files)>, DataError> {
        match &self.choice {
            Some(DatasetChoice::Directory(folder)) => {
                if !folder.is_dir() {
                    return Err(DataError::NoFolder { folder: folder.clone() });
                }
                let files = Files::find(folder)?.ok_or_else(|| DataError::MissingFiles {
                    folder: folder.clone(),
                    found: 0,
                    missing: FILE_NAMES.to_vec(),
                })?;
                Ok(Some((Place { name: folder_name(folder), folder: folder.clone() }, files)))
            }
            Some(DatasetChoice::FashionMnist) => self.locate_named(
                FASHION_MNIST,
                "install it (apt install dataset-fashion-mnist), name its folder \
                 (--dataset DIR), or train on drawn digits (--dataset synthetic)",
            ),
            Some(DatasetChoice::Mnist) => self.locate_named(
                MNIST,
                "put its four files into one of them, name its folder (--dataset DIR), \
                 or train on drawn digits (--dataset synthetic)",
            ),
            Some(DatasetChoice::Synthetic) => Ok(None),
            None => {
                let places = self.usual_places();
                let found = first_complete(&places)?;
                if found.is_none() {
                    notices.push(format!(
                        "No data set was found in {}: training on synthetic digits. For \
                         Fashion-MNIST: apt install dataset-fashion-mnist, or --dataset DIR.",
                        list(&folders(&places))
                    ));
                }
                Ok(found)
            }
        }
    }

    fn locate_named(
        &self,
        name: &'static str,
        next: &'static str,
    ) -> Result<Option<(Place, Files)>, DataError> {
        let places = self.places_of(name);
        match first_complete(&places)? {
            Some(found) => Ok(Some(found)),
            None => Err(DataError::NotFound { name, searched: folders(&places), next }),
        }
    }

    fn usual_places(&self) -> Vec<Place> {
        let local = &self.roots.local;
        let mut places = vec![
            Place { name: FASHION_MNIST.into(), folder: self.roots.system.join(FASHION_MNIST) },
            Place { name: folder_name(local), folder: local.clone() },
        ];
        places.extend(self.local_places(FASHION_MNIST));
        places.extend(self.local_places(MNIST));
        places
    }

    fn places_of(&self, name: &str) -> Vec<Place> {
        let mut places = vec![Place { name: name.into(), folder: self.roots.system.join(name) }];
        places.extend(self.local_places(name));
        places
    }

    fn local_places(&self, name: &str) -> [Place; 2] {
        let torchvision = if name == MNIST { "MNIST" } else { "FashionMNIST" };
        let local = &self.roots.local;
        [local.join(name), local.join(torchvision).join("raw")]
            .map(|folder| Place { name: name.into(), folder })
    }
}

const FASHION_MNIST: &str = "fashion-mnist";
const MNIST: &str = "mnist";
const SYNTHETIC: &str = "synthetic";

/// A folder that may hold a data set, and what the data set is then called.
struct Place {
    name: String,
    folder: PathBuf,
}

fn folders(places: &[Place]) -> Vec<PathBuf> {
    places.iter().map(|place| place.folder.clone()).collect()
}

/// `.` and `..` have no name of their own; the folder behind them has, save for the root.
fn folder_name(folder: &Path) -> String {
    let real = if folder.file_name().is_none() { folder.canonicalize().ok() } else { None };
    let name = real.as_deref().unwrap_or(folder).file_name();
    name.map_or_else(|| folder.display().to_string(), |name| name.to_string_lossy().into_owned())
}

fn first_complete(places: &[Place]) -> Result<Option<(Place, Files)>, DataError> {
    for Place { name, folder } in places {
        if let Some(files) = Files::find(folder)? {
            return Ok(Some((Place { name: name.clone(), folder: folder.clone() }, files)));
        }
    }
    Ok(None)
}

/// The usual names of a data set's files. Each may also be spelled `.idx` for `-idx`, and end in
/// `.gz`; of several the first in this order is taken: plain before gzip, `-idx` before `.idx`.
const FILE_NAMES: [&str; 4] = [
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
];

struct Files {
    train_images: PathBuf,
    train_labels: PathBuf,
    test_images: PathBuf,
    test_labels: PathBuf,
}

impl Files {
    /// The four files of a folder, none if it holds none of them.
    fn find(folder: &Path) -> Result<Option<Files>, DataError> {
        let mut paths = Vec::with_capacity(FILE_NAMES.len());
        let mut missing = Vec::new();
        for name in FILE_NAMES {
            match find_file(folder, name)? {
                Some(path) => paths.push(path),
                None => missing.push(name),
            }
        }
        match <[PathBuf; 4]>::try_from(paths) {
            Ok([train_images, train_labels, test_images, test_labels]) => {
                Ok(Some(Files { train_images, train_labels, test_images, test_labels }))
            }
            Err(paths) if paths.is_empty() => Ok(None),
            Err(paths) => {
                Err(DataError::MissingFiles { folder: folder.into(), found: paths.len(), missing })
            }
        }
    }
}

fn find_file(folder: &Path, name: &str) -> Result<Option<PathBuf>, DataError> {
    for spelling in [name.to_owned(), name.replace("-idx", ".idx")] {
        for ending in ["", ".gz"] {
            let path = folder.join(format!("{spelling}{ending}"));
            match path.metadata() {
                Ok(metadata) if metadata.is_file() => return Ok(Some(path)),
                Ok(_) => {}
                Err(error)
                    if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
                Err(source) => return Err(DataError::Read { path, source }),
            }
        }
    }
    Ok(None)
}

fn read_set(images: &Path, labels: &Path) -> Result<ImageSet, DataError> {
    let set = ImageSet { pixels: idx::read_images(images)?, labels: idx::read_labels(labels)? };
    let image_count = set.pixels.len() / IMAGE_PIXELS;
    if image_count != set.count() {
        return Err(DataError::Counts {
            images: images.into(),
            image_count,
            labels: labels.into(),
            label_count: set.count(),
        });
    }
    Ok(set)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Search roots in a folder of their own, empty at first.
    struct Home {
        root: tempfile::TempDir,
    }

    impl Home {
        fn new() -> Home {
            Home { root: tempfile::tempdir().expect("a temporary folder") }
        }

        fn request(&self, choice: Option<&str>) -> DatasetRequest {
            DatasetRequest {
                choice: choice.map(|text| text.parse().expect("not empty")),
                roots: SearchRoots {
                    system: self.root.path().join("system"),
                    local: self.root.path().join("data"),
                },
                ..DatasetRequest::default()
            }
        }

        /// Writes a small data set; its first label tells it from others.
        fn put(&self, folder: &str, first_label: u8) -> PathBuf {
            let folder = self.root.path().join(folder);
            fs::create_dir_all(&folder).expect("a temporary folder");
            for (images, labels, count) in
                [(FILE_NAMES[0], FILE_NAMES[1], 3u8), (FILE_NAMES[2], FILE_NAMES[3], 2)]
            {
                let mut file = vec![0, 0, 8, 3, 0, 0, 0, count, 0, 0, 0, 28, 0, 0, 0, 28];
                file.extend((0..usize::from(count) * IMAGE_PIXELS).map(|i| i as u8));
                fs::write(folder.join(images), file).expect("a temporary file");
                let mut file = vec![0, 0, 8, 1, 0, 0, 0, count];
                file.extend((0..count).map(|i| (first_label + i) % 10));
                fs::write(folder.join(labels), file).expect("a temporary file");
            }
            folder
        }
    }

    fn load(request: &DatasetRequest) -> LoadedDataset {
        request.load().expect("a sound data set")
    }

    #[test]
    fn choices_are_written_as_they_are_read() {
        for text in ["fashion-mnist", "mnist", "synthetic", "./mnist", "/some/folder"] {
            let choice: DatasetChoice = text.parse().expect("not empty");
            assert_eq!(choice.to_string(), text);
        }
        assert!(matches!("".parse::<DatasetChoice>(), Err(DataError::EmptyChoice)));
    }

    #[test]
    fn the_usual_places_are_searched_in_order() {
        let home = Home::new();
        // From the last place to the first: each takes precedence over those before.
        let places = [
            ("data/MNIST/raw", "mnist"),
            ("data/mnist", "mnist"),
            ("data/FashionMNIST/raw", "fashion-mnist"),
            ("data/fashion-mnist", "fashion-mnist"),
            ("data", "data"),
            ("system/fashion-mnist", "fashion-mnist"),
        ];
        for (label, (folder, name)) in places.into_iter().enumerate() {
            let folder = home.put(folder, label as u8);
            let loaded = load(&home.request(None));
            assert_eq!(loaded.origin, DatasetChoice::Directory(folder));
            assert_eq!(loaded.dataset.name, name);
            assert_eq!(usize::from(loaded.dataset.train.labels[0]), label);
            assert_eq!(loaded.notices, [""; 0]);
        }
    }

    #[test]
    fn without_data_the_digits_are_taken_with_a_notice() {
        let home = Home::new();
        let loaded = load(&home.request(None));
        assert_eq!(loaded.origin, DatasetChoice::Synthetic);
        assert_eq!(loaded.dataset.name, "synthetic");
        let [notice] = &loaded.notices[..] else { panic!("one notice, not {:?}", loaded.notices) };
        let place = home.root.path().join("system").join(FASHION_MNIST).display().to_string();
        for part in ["synthetic", &place, "apt install dataset-fashion-mnist"] {
            assert!(notice.contains(part), "{notice}");
        }
        // Asked for by name they need no notice.
        let asked = load(&home.request(Some("synthetic")));
        assert_eq!(asked.notices, [""; 0]);
        assert_eq!(asked.dataset, loaded.dataset);
    }

    #[test]
    fn a_name_is_looked_for_in_its_own_places_only() {
        let home = Home::new();
        home.put("data", 0);
        home.put("data/fashion-mnist", 1);
        let error = home.request(Some("mnist")).load().expect_err("there is no mnist").to_string();
        let places = ["system", "data"]
            .map(|root| home.root.path().join(root).join(MNIST).display().to_string());
        for part in ["--dataset mnist", &places[0], &places[1], "--dataset DIR"] {
            assert!(error.contains(part), "{error}");
        }
        home.put("data/mnist", 2);
        assert_eq!(load(&home.request(Some("mnist"))).dataset.train.labels, [2, 3, 4]);
        assert_eq!(load(&home.request(Some("fashion-mnist"))).dataset.train.labels, [1, 2, 3]);
    }

    #[test]
    fn a_folder_is_read_under_its_name() {
        let home = Home::new();
        let folder = home.put("letters", 5);
        let loaded = load(&home.request(folder.to_str()));
        assert_eq!(loaded.dataset.name, "letters");
        assert_eq!(loaded.dataset.test.labels, [5, 6]);
        assert_eq!(
            load(&DatasetRequest { choice: Some(loaded.origin.clone()), ..home.request(None) }),
            loaded
        );
    }

    #[test]
    fn every_spelling_of_the_files_is_found() {
        let home = Home::new();
        let folder = home.put("data", 0);
        let expected = load(&home.request(None)).dataset.sha256;
        for name in FILE_NAMES {
            let dotted = folder.join(name.replace("-idx", ".idx"));
            fs::rename(folder.join(name), &dotted).expect("a temporary file");
            assert_eq!(load(&home.request(None)).dataset.sha256, expected, "{name}");
            // The ending says nothing about the content.
            fs::rename(&dotted, folder.join(format!("{name}.gz"))).expect("a temporary file");
            assert_eq!(load(&home.request(None)).dataset.sha256, expected, "{name}");
        }
    }

    #[test]
    fn a_part_of_a_data_set_is_not_replaced_by_digits() {
        let home = Home::new();
        let folder = home.put("data", 0);
        fs::remove_file(folder.join(FILE_NAMES[1])).expect("a temporary file");
        let error = home.request(None).load().expect_err("a file is missing");
        assert!(matches!(
            &error,
            DataError::MissingFiles { found: 3, missing, .. } if missing[..] == [FILE_NAMES[1]]
        ));
        assert!(error.to_string().contains(FILE_NAMES[1]), "{error}");
    }

    #[test]
    fn a_folder_without_data_and_no_folder_are_told_apart() {
        let home = Home::new();
        let there = home.root.path().to_str();
        let error = home.request(there).load().expect_err("the folder is empty");
        assert!(matches!(error, DataError::MissingFiles { found: 0, .. }), "{error}");
        let error = home.request(Some("fashon-mnist")).load().expect_err("there is no such folder");
        assert!(matches!(error, DataError::NoFolder { .. }), "{error}");
    }

    #[test]
    fn a_limit_of_none_is_refused_and_one_too_large_is_noted() {
        let home = Home::new();
        home.put("data", 0);
        let mut request = home.request(None);
        request.limits = SampleLimits { train: Some(4), test: Some(2) };
        let loaded = load(&request);
        assert_eq!(loaded.dataset.train.count(), 3);
        let [notice] = &loaded.notices[..] else { panic!("one notice, not {:?}", loaded.notices) };
        assert!(notice.starts_with("--train-limit 4"), "{notice}");
        request.limits.test = Some(0);
        let error = request.load().expect_err("no test samples");
        assert!(error.to_string().starts_with("--test-limit 0"), "{error}");
    }

    #[test]
    fn counts_that_differ_name_both_files() {
        let home = Home::new();
        let folder = home.put("data", 0);
        fs::copy(folder.join(FILE_NAMES[1]), folder.join(FILE_NAMES[3])).expect("temporary files");
        let error = home.request(None).load().expect_err("three labels for two images");
        assert!(matches!(error, DataError::Counts { image_count: 2, label_count: 3, .. }));
        let text = error.to_string();
        assert!(text.contains(FILE_NAMES[2]) && text.contains(FILE_NAMES[3]), "{text}");
    }
}
