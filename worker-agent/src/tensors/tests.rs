use super::*;

fn gradients(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("gradients")
        .join(file)
}

#[test]
fn tensors_are_in_the_order_of_their_names() {
    let t = Tensors::read(&gradients("mixed/rank0.safetensors")).unwrap();
    let names: Vec<_> = t.tensors.iter().map(|t| t.name.as_str()).collect();
    assert!(names.is_sorted());
    assert_eq!(t.elements(), 3706 + 11);
    let scalar = t.tensors.iter().find(|t| t.name == "shard.examples");
    assert!(scalar.unwrap().shape.is_empty());
}

#[test]
fn written_files_read_back_the_same() {
    let folder = tempfile::tempdir().unwrap();
    for file in [
        "mixed/rank3.safetensors",
        "digits/step399/rank0.safetensors",
    ] {
        let t = Tensors::read(&gradients(file)).unwrap();
        let out = folder.path().join("out.safetensors");
        t.write(&out).unwrap();
        assert!(Tensors::read(&out).unwrap() == t, "{file}");
    }
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "no temporary file is left: {left:?}");
}

#[test]
fn a_file_that_cannot_be_written_leaves_the_old_one() {
    let t = Tensors::synthetic(1, 0, 10, Dtype::F32);
    let error = t.write(Path::new("/nowhere/x.safetensors")).unwrap_err();
    assert!(error.to_string().contains("/nowhere/"), "{error}");
    assert!(t.write(Path::new("/")).is_err());
}

#[test]
fn other_types_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("f64.safetensors");
    let data = [0; 16];
    let view = safetensors::tensor::TensorView::new(FileDtype::F64, vec![2], &data).unwrap();
    safetensors::serialize_to_file([("w", view)], None, &path).unwrap();
    let error = Tensors::read(&path).unwrap_err().to_string();
    assert!(error.contains("tensor \"w\" is F64"), "{error}");
    fs::write(&path, b"no tensors").unwrap();
    let error = Tensors::read(&path).unwrap_err().to_string();
    assert!(error.contains("not a usable safetensors file"), "{error}");
}

/// Against numbers from `reference/check.py`.
#[test]
fn synthetic_numbers_are_those_of_the_reference() {
    let t = Tensors::synthetic(7, 3, 1000, Dtype::F32);
    let words = t.tensors[0].bytes.as_chunks().0.iter();
    let floats: Vec<_> = words.map(|b| f32::from_ne_bytes(*b)).collect();
    assert!(floats.len() == 1000 && floats.iter().all(|v| v.abs() <= 1.0));
    let bits: Vec<u32> = floats[..4].iter().map(|v| v.to_bits()).collect();
    assert_eq!(bits, SYNTHETIC_7_3);
}

/// `python3 -c 'import check; print([hex(x) for x in check.synthetic(7, 3, 0, 4).view("<u4")])'`
const SYNTHETIC_7_3: [u32; 4] = [0x3d22_6a1c, 0x38ed_15ee, 0x3aaa_5880, 0x37e7_0548];
