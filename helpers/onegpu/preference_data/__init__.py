"""Preference data: from a ranking A > B > C to pairs, to a reward model, to DPO.

Read it in this order: ``rankings`` (ties, cycles, pairs), ``validation`` (bad pairs, length and position bias),
``losses`` (Bradley-Terry and DPO), ``logprobs`` (exactly the completion), ``reward_model``, ``dpo``. ``pair_sets`` reads rows
of pairs or rankings for ``onegpu.qlora_finetune``, which trains with the same loss.
"""

from onegpu.preference_data.dpo import DpoStep, reference_logprobs, train_dpo
from onegpu.preference_data.logprobs import (
    TokenizedPair,
    TokenizedPairs,
    pair_logprobs,
    sequence_logprobs,
    tokenize_pairs,
)
from onegpu.preference_data.losses import (
    Accuracy,
    DpoLoss,
    bradley_terry_loss,
    diagnose,
    dpo_loss,
    pair_accuracy,
    ranking_loss,
)
from onegpu.preference_data.pair_sets import (
    NoPreferences,
    pairs_in,
    parts_of,
    read_preferences,
    row_pairs,
    sides_of,
    tokenize_pair_set,
)
from onegpu.preference_data.rankings import (
    PreferencePair,
    Ranking,
    VoteProblems,
    check_votes,
    load_rankings,
    pairs_of,
    parse_order,
    same_text,
    split_rankings,
    to_pairs,
    to_ranking,
)
from onegpu.preference_data.reward_model import (
    RewardHead,
    RewardTraining,
    answer_features,
    reward_accuracy,
    train_reward_head,
)
from onegpu.preference_data.stored import dpo_runs
from onegpu.preference_data.validation import (
    LengthBias,
    PairError,
    PairReport,
    PositionBias,
    length_bias,
    pair_problems,
    position_bias,
    read_pairs,
    to_pair,
    validate_pairs,
)

__all__ = [
    "Accuracy",
    "DpoLoss",
    "DpoStep",
    "LengthBias",
    "NoPreferences",
    "PairError",
    "PairReport",
    "PositionBias",
    "PreferencePair",
    "Ranking",
    "RewardHead",
    "RewardTraining",
    "TokenizedPair",
    "TokenizedPairs",
    "VoteProblems",
    "answer_features",
    "bradley_terry_loss",
    "check_votes",
    "diagnose",
    "dpo_loss",
    "dpo_runs",
    "length_bias",
    "load_rankings",
    "pair_accuracy",
    "pair_logprobs",
    "pair_problems",
    "pairs_in",
    "pairs_of",
    "parse_order",
    "parts_of",
    "position_bias",
    "ranking_loss",
    "read_pairs",
    "read_preferences",
    "reference_logprobs",
    "reward_accuracy",
    "row_pairs",
    "same_text",
    "sequence_logprobs",
    "sides_of",
    "split_rankings",
    "to_pair",
    "to_pairs",
    "to_ranking",
    "tokenize_pair_set",
    "tokenize_pairs",
    "train_dpo",
    "train_reward_head",
    "validate_pairs",
]
