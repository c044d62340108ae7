from pyvgpu.run import mount_namespace


def test_files_that_the_shim_covers(tmp_path):
    files = [tmp_path / "libcuda.so.580.1", tmp_path / "libnvidia-ml.so.580.1"]
    for file in files:
        file.touch()
    (tmp_path / "libcuda.so").symlink_to("libcuda.so.580.1")
    assert mount_namespace.shimmed_names(tmp_path, files) == (
        "libcuda.so.580.1",
        "libnvidia-ml.so.580.1",
        "libcuda.so.1",
        "libnvidia-ml.so.1",
        "libcuda.so",
    )


def test_folders_whose_links_lead_to_the_driver_are_found(tmp_path):
    driver, linking, other = tmp_path / "current", tmp_path / "lib", tmp_path / "other"
    for folder in (driver, linking, other):
        folder.mkdir()
    (driver / "libcuda.so.580.1").touch()
    (driver / "libcuda.so.1").symlink_to("libcuda.so.580.1")
    (linking / "libcuda.so.1").symlink_to("../current/libcuda.so.1")
    (other / "libcuda.so.1").touch()
    folders = [str(folder) for folder in (driver, linking, other, tmp_path / "nowhere")]
    assert mount_namespace.link_folders(driver, folders) == (linking,)
