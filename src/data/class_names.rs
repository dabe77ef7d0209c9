//! What the ten classes of a data set are called.

const FASHION_MNIST: [&str; 10] = [
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
];

/// The class's name in the data set of this name; empty where the class number says it all.
pub fn class_name(dataset: &str, class: usize) -> &'static str {
    match dataset {
        "fashion-mnist" => FASHION_MNIST.get(class).copied().unwrap_or(""),
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_need_no_names() {
        assert_eq!(class_name("fashion-mnist", 9), "Ankle boot");
        assert_eq!(class_name("mnist", 9), "");
    }
}
