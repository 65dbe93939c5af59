from ddpsim.prediction.predict import NEGLIGIBLE
from studies.bands.coarse_bands import distances


def test_a_coarse_band_is_the_whole_one_to_what_is_left_out():
    cases = (("resnet50", "dgx-1v", 4), ("resnet50@b200-amp-b32", "dgx-h100", 1), ("vgg16", "p3.16xlarge", 2))
    assert all(distance <= NEGLIGIBLE for *_, distance in distances(cases))
