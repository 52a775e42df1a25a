//! GGUF files that are written: they are what was asked for, or nothing at all.

use turbospark_tensor::{DType, Shape};
use turbospark_weights::gguf::{self, Array, NewTensor, Value};
use turbospark_weights::packed::PackError;

#[test]
fn what_is_written_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.gguf");
    let values = [
        Value::U8(1),
        Value::I8(-1),
        Value::U16(2),
        Value::I16(-2),
        Value::U32(3),
        Value::I32(-3),
        Value::U64(4),
        Value::I64(-4),
        Value::F32(0.5),
        Value::F64(-0.25),
        Value::Bool(true),
        Value::String("ü".to_owned()),
        Value::Array(Array::U8(vec![1, 2])),
        Value::Array(Array::I8(vec![-1])),
        Value::Array(Array::U16(vec![1])),
        Value::Array(Array::I16(vec![-1])),
        Value::Array(Array::U32(vec![1])),
        Value::Array(Array::I32(vec![-1])),
        Value::Array(Array::U64(vec![1])),
        Value::Array(Array::I64(vec![-1])),
        Value::Array(Array::F32(vec![1.5])),
        Value::Array(Array::F64(vec![2.5])),
        Value::Array(Array::Bool(vec![true, false])),
        Value::Array(Array::String(vec!["a".to_owned(), String::new()])),
    ];
    let keys: Vec<(String, Value)> = values.into_iter().enumerate().map(|(i, v)| (format!("k.{i}"), v)).collect();
    let tensor = |name: &str, dtype, shape| NewTensor { name: name.to_owned(), dtype, shape };
    let tensors = vec![
        tensor("a", DType::F32, Shape::from([3])),
        tensor("b", DType::Q8_0, Shape::from([2, 3, 32])),
        tensor("c", DType::BF16, Shape::from([1])),
    ];
    let data = [vec![1; 12], vec![2; 204], vec![3; 2]];
    let mut writer = gguf::Writer::new(&path, "of this", &keys, tensors.clone()).unwrap();
    let total = writer.total();
    // In pieces, as a filler gives them.
    let fill = |i: usize, sink: &mut dyn FnMut(&[u8]) -> Result<(), PackError>| data[i].chunks(5).try_for_each(sink);
    writer.write(fill).unwrap();
    assert!(!path.exists());
    writer.finish().unwrap();
    writer.settle().unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), total);
    let set = gguf::open(&path).unwrap();
    let read: Vec<(String, Value)> = set.metadata.iter().map(|(k, v)| (k.to_owned(), v.clone())).collect();
    assert_eq!(read, keys);
    for ((file, got), (want, data)) in set.tensors.iter().zip(tensors.iter().zip(&data)) {
        let dims: Vec<usize> = got.dims.iter().map(|&side| side as usize).collect();
        assert_eq!((&got.name, got.dtype, dims.as_slice()), (&want.name, Some(want.dtype), want.shape.dims()));
        let mut bytes = vec![0; got.length as usize];
        set.files[*file].read_at(got.offset, &mut bytes).unwrap();
        assert_eq!(&bytes, data);
    }
    let refused = gguf::Writer::new(&path, "of this", &keys, tensors).unwrap_err().to_string();
    assert!(refused.contains("x.gguf") && refused.contains("already"), "{refused}");
    let abandoned = dir.path().join("y.gguf");
    let mut writer = gguf::Writer::new(&abandoned, "of this", &keys, Vec::new()).unwrap();
    writer.write(|_, _| Ok::<(), PackError>(())).unwrap();
    writer.abandon();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn an_interrupted_file_goes_on_from_its_last_whole_tensor() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.gguf");
    let keys = [("general.name".to_owned(), Value::String("x".to_owned()))];
    let data: Vec<Vec<u8>> = (0..40u8).map(|i| vec![i; 4 * usize::from(i) + 4]).collect();
    let tensor = |(i, bytes): (usize, &Vec<u8>)| NewTensor {
        name: format!("t{i}"),
        dtype: DType::F32,
        shape: Shape::from([bytes.len() / 4]),
    };
    let tensors: Vec<NewTensor> = data.iter().enumerate().map(tensor).collect();
    let begin = |made: &str| gguf::Writer::new(&path, made, &keys, tensors.clone()).unwrap();
    // Stops within tensor `stop`; gives the tensors that were asked for.
    let run = |writer: &mut gguf::Writer, stop: usize| {
        let mut asked = Vec::new();
        let ended = writer.write(|i, sink| {
            asked.push(i);
            let bytes = if i == stop { &data[i][..2] } else { &data[i][..] };
            sink(bytes)?;
            let io = || PackError::Io { path: path.clone(), source: std::io::Error::other("stop") };
            if i == stop { Err(io()) } else { Ok(()) }
        });
        assert_eq!(ended.is_ok(), stop == usize::MAX);
        asked
    };
    let mut first = begin("one way");
    assert_eq!((first.resumed(), run(&mut first, 17)), (0, (0..=17).collect::<Vec<_>>()));
    drop(first);
    assert!(!path.exists());

    // Made in another way, or with its partial file cut, nothing is taken over.
    assert_eq!(begin("another way").resumed(), 0);
    let partial = dir.path().join("x.gguf.partial");
    let whole = std::fs::read(&partial).unwrap();
    std::fs::write(&partial, &whole[..whole.len() / 2]).unwrap();
    assert_eq!(begin("one way").resumed(), 0);
    std::fs::write(&partial, &whole).unwrap();

    let mut second = begin("one way");
    assert!(second.resumed() > 0 && second.resumed() < second.total());
    assert_eq!(run(&mut second, usize::MAX), (17..40).collect::<Vec<_>>());
    drop(second);
    // Killed once all is written, then once it has its name.
    let mut third = begin("one way");
    assert_eq!((third.resumed(), run(&mut third, usize::MAX)), (third.total(), vec![]));
    third.finish().unwrap();
    drop(third);
    let mut fourth = begin("one way");
    assert_eq!(run(&mut fourth, usize::MAX), Vec::<usize>::new());
    fourth.finish().unwrap();
    fourth.settle().unwrap();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    assert!(gguf::Writer::new(&path, "one way", &keys, tensors.clone()).is_err());

    let set = gguf::open(&path).unwrap();
    for ((file, got), want) in set.tensors.iter().zip(&data) {
        let mut bytes = vec![0; got.length as usize];
        set.files[*file].read_at(got.offset, &mut bytes).unwrap();
        assert_eq!(&bytes, want);
    }
}
