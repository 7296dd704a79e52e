"""Suggestions for a word that is no setting: it may be another library's name for one, or misspelt."""

from __future__ import annotations

import difflib
from collections.abc import Collection

WORDS: dict[str, str] = {
    "env": "env_id gym_id",
    "envs.frameskip": "frame_skip env_frameskip action_repeat",
    "envs.frame_stack": "num_stack n_stack env_framestack framestack",
    "envs.reward_clip": "clip_reward clip_rewards reward_clipping",
    "envs.max_episode_steps": "horizon time_limit max_episode_length",
    "envs.kwargs": "env_kwargs env_config",
    "policy.hidden": "fc_size fcnet_hiddens net_arch hidden_size hidden_dim",
    "policy.mlp": "encoder_mlp_layers fcnet_hiddens net_arch",
    "policy.encoder": "policy_class encoder_conv_architecture model network",
    "policy.core": "use_rnn use_lstm rnn_type lstm",
    "policy.core_size": "rnn_size lstm_cell_size lstm_hidden_size",
    "policy.activation": "nonlinearity activation_fn fcnet_activation",
    "policy.normalize_observations": "normalize_input norm_obs normalize_obs observation_filter",
    "policy.normalize_returns": "norm_reward normalize_reward",
    "policy.initial_std": "log_std_init initial_stddev",
    "sampling.placement": "serial_mode async_rl vec_env_cls local_mode",
    "sampling.num_workers": "num_envs n_envs num_actors num_env_runners num_rollout_workers n_jobs",
    "sampling.envs_per_worker": "num_envs n_envs num_envs_per_worker num_envs_per_env_runner",
    "sampling.num_groups": "worker_num_splits",
    "sampling.num_policy_workers": "policy_workers_per_policy num_inference_threads",
    "sampling.rollout": "num_steps n_steps unroll_length rollout_length rollout_fragment_length recurrence horizon",
    "sampling.worker_niceness": "default_niceness",
    "learning.algorithm": "algo algorithm_name run",
    "learning.total_steps": "steps max_steps total_timesteps timesteps timesteps_total train_for_env_steps total_env_steps "
    "num_frames",
    "learning.batch_size": "train_batch_size train_batch_size_per_learner",
    "learning.num_minibatches": "minibatch_size sgd_minibatch_size num_batches_per_epoch nminibatches minibatches",
    "learning.num_epochs": "n_epochs update_epochs num_sgd_iter epochs noptepochs",
    "learning.gamma": "discount discounting discount_factor",
    "learning.gae_lambda": "lambda lambda_ lam",
    "learning.returns": "with_vtrace use_vtrace use_gae",
    "learning.ppo_clip": "clip_coef clip_range clip_param ppo_clip_ratio clip_ratio",
    "learning.value_clip": "clip_range_vf clip_vloss vf_clip_param ppo_clip_value",
    "learning.value_coef": "vf_coef vf_loss_coeff value_loss_coeff baseline_cost value_loss_coef critic_coef",
    "learning.entropy_coef": "ent_coef entropy_coeff entropy_cost exploration_loss_coeff entropy_loss_coef",
    "learning.normalize_advantages": "norm_adv normalize_advantage advantage_normalization",
    "learning.max_policy_lag": "max_policy_delay",
    "learning.optimizer_eps": "adam_eps rms_prop_eps",
    "learning.adam_betas": "adam_beta1 adam_beta2 betas",
    "learning.learning_rate": "lr",
    "learning.lr_schedule": "anneal_lr lr_decay linear_schedule",
    "learning.max_grad_norm": "grad_clip grad_norm_clipping clip_grad max_gradient_norm gradient_clip",
    "learning.device": "cuda gpu num_gpus use_gpu accelerator",
    "learning.num_devices": "num_learners num_gpus gpus num_gpus_per_learner",
    "replay.capacity": "buffer_size replay_size replay_buffer_size memory_size",
    "replay.minimum": "learning_starts warmup_steps num_steps_sampled_before_learning_starts",
    "replay.samples_per_insert": "train_frequency train_freq gradient_steps training_intensity replay_ratio",
    "replay.alpha": "prioritized_replay_alpha",
    "replay.beta": "prioritized_replay_beta",
    "q.target_period": "target_network_frequency target_update_interval target_network_update_freq tau polyak",
    "q.epsilon_first": "start_e exploration_initial_eps",
    "q.epsilon_last": "end_e exploration_final_eps",
    "q.epsilon_decay": "exploration_fraction epsilon_timesteps",
    "q.double": "double_q double_dqn",
    "q.atoms": "num_atoms n_atoms",
    "q.support": "v_min v_max",
    "population.size": "num_policies",
    "pbt.rule": "with_pbt pbt",
    "run.folder": "train_dir savedir logdir log_dir tensorboard_log storage_path local_dir checkpoint_dir save_path",
    "run.name": "experiment exp_name run_name xpid",
    "run.goal": "stop_reward target_reward reward_threshold",
    "run.checkpoint_interval": "save_every_sec checkpoint_freq save_freq checkpoint_frequency",
    "run.keep_checkpoints": "keep_num num_to_keep",
    "run.eval_interval_steps": "eval_freq evaluation_interval eval_every_steps",
    "run.eval_episodes": "n_eval_episodes evaluation_duration num_eval_episodes",
    "run.video": "capture_video save_video record_video record_env",
    "run.track": "with_wandb wandb use_wandb tensorboard",
    "run.wandb_project": "wandb_project_name",
    "run.dashboard": "verbose progress_bar log_level",
}
"""Setting -> what Stable-Baselines3, CleanRL, Sample Factory, RLlib, TorchBeast and others call it, or call what it decides."""


def suggestions(word: str, settings: Collection[str]) -> list[str]:
    """The dotted names among `settings` that a flag or a name may mean, the likeliest first: those of another library's word, or
    else those that are spelt alike."""
    word = word.lstrip("-").replace("-", "_").lower()
    group, _, plain = word.rpartition(".")
    if found := [name for name, words in WORDS.items() if name in settings and plain.removeprefix("no_") in words.split()]:
        return found
    by_plain: dict[str, list[str]] = {}
    for name in settings:
        by_plain.setdefault(name.rpartition(".")[2], []).append(name)
    alike = [plain] if plain in by_plain else difflib.get_close_matches(plain, by_plain, n=2, cutoff=0.7)
    found = [name for near in alike for name in by_plain[near]]
    return sorted(found, key=lambda name: name.rpartition(".")[0] != group)
